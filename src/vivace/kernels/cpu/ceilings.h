// The integer ceiling of this processor: dot products of bytes and nothing else. Benchmarks print results beside it.
#pragma once

#include <stdint.h>

namespace vivace {

// How fast dot products of bytes can be at most: the instruction that does them best here, and a loop of it.
struct ByteDots {
    const char* instruction;
    double (*run)(int64_t rounds);  // returns operations done: two for each product and its sum
};

// The best one of this processor; decided by its features, not by a clock.
ByteDots best_byte_dots();

}  // namespace vivace
