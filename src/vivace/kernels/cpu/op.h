// An operation whose tensors were checked: it runs once, or stands in a tape and runs every step.
#pragma once

#include <cstdint>
#include <functional>

namespace vivace {

class Kernels;

// How much of an operation's tensors a step uses: the first rows, and the first sequences where rows belong to some.
struct Extent {
    int64_t rows = 0;
    int64_t sequences = 0;
};

struct Op {
    Extent whole;  // all that its tensors hold
    std::function<void(Kernels&, const Extent&)> run;
};

}  // namespace vivace
