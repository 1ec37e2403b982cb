// Drawing an id from scores: what is asked for, and how scores become weights.
#pragma once

#include <stdint.h>

namespace vivace {

constexpr int64_t kDrawBlock = 256;  // scores of one stretch

// See DrawSpec in kernels/ops.py.
struct DrawChoice {
    float temperature;
    int64_t top_k;
    double top_p, min_p;
};

// The scaled score is (x - shift) / divisor, or x itself; its weight e^(score - top) where it is not below `least`.
struct DrawScale {
    float shift, divisor;
    bool is_scaled;
    float least;
    double top;

    float of(float x) const { return is_scaled ? (x - shift) / divisor : x; }
    void keep_from(float score) { least = score > least ? score : least; }
};

}  // namespace vivace
