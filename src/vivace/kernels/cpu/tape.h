// A recorded step: operations over fixed tensors, run one after another by the pool, for any number of rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels.h"
#include "op.h"

namespace vivace {

class Tape {
public:
    // Some operations are about all rows of a step, others about the rows that were chosen for the head.
    enum Group { kRows, kChosen, kGroups };

    explicit Tape(Kernels& kernels) : kernels_(kernels) {}

    // Throws std::invalid_argument for a group that does not exist.
    void add(int64_t group, Op op);

    // Run the operations for these many rows, chosen rows and sequences. Throws std::invalid_argument when the tensors do
    // not hold that many, and what an operation throws that finds a wrong index.
    void run(int64_t rows, int64_t chosen, int64_t sequences);

    // The same, and the nanoseconds that each operation took.
    std::vector<int64_t> run_timed(int64_t rows, int64_t chosen, int64_t sequences);

    int64_t size() const { return static_cast<int64_t>(ops_.size()); }

private:
    struct Entry {
        Group group;
        Op op;
    };

    void check(const Entry& entry, const Extent& extent) const;

    template <class After>
    void run_each(const int64_t (&counts)[kGroups], int64_t sequences, const After& after);

    Kernels& kernels_;
    std::vector<Entry> ops_;
};

}  // namespace vivace
