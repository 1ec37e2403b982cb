#include "tape.h"

#include <chrono>
#include <stdexcept>

namespace vivace {

void Tape::add(int64_t group, Op op) {
    if (group < 0 || group >= kGroups) throw std::invalid_argument("there is no group " + std::to_string(group));
    ops_.push_back({static_cast<Group>(group), std::move(op)});
}

void Tape::run(int64_t rows, int64_t chosen, int64_t sequences) {
    run_each({rows, chosen}, sequences, [] {});
}

std::vector<int64_t> Tape::run_timed(int64_t rows, int64_t chosen, int64_t sequences) {
    using Clock = std::chrono::steady_clock;
    std::vector<int64_t> times;
    times.reserve(ops_.size());
    auto before = Clock::now();
    run_each({rows, chosen}, sequences, [&] {
        const auto now = Clock::now();
        times.push_back(std::chrono::duration_cast<std::chrono::nanoseconds>(now - before).count());
        before = now;
    });
    return times;
}

template <class After>
void Tape::run_each(const int64_t (&counts)[kGroups], int64_t sequences, const After& after) {
    // Everything is checked before the first operation writes.
    for (const auto& entry : ops_) check(entry, {counts[entry.group], sequences});
    const Pool::Step step(kernels_.pool_);
    for (const auto& entry : ops_) {
        const Extent extent{counts[entry.group], sequences};
        if (extent.rows > 0) entry.op.run(kernels_, extent);
        after();
    }
}

void Tape::check(const Entry& entry, const Extent& extent) const {
    const auto& whole = entry.op.whole;
    if (extent.rows < 0 || extent.rows > whole.rows) {
        throw std::invalid_argument("a step of " + std::to_string(extent.rows) + " rows, the tape holds " +
                                    std::to_string(whole.rows));
    }
    if (whole.sequences > 0 && (extent.sequences < 0 || extent.sequences > whole.sequences)) {
        throw std::invalid_argument("a step of " + std::to_string(extent.sequences) + " sequences, the tape holds " +
                                    std::to_string(whole.sequences));
    }
}

}  // namespace vivace
