// Attention over whole steps: cuts the rows into parts, one key head each, and long parts into stretches of units.
//
// A part is computed stretch by stretch, and what a query takes from them is merged in their order. Stretches begin at
// multiples of kStretchUnits of the sequence, for every row: so it is the same arithmetic whether one thread computes a
// part, or several its stretches.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace vivace {

constexpr int64_t kStretchUnits = 256;  // units; a multiple of kPanel

// Some rows of one segment and one key head. Its queries are numbered row by row, and within a row by head.
struct AttentionPart {
    const Segment* segment;
    int64_t first;  // row within the segment
    int64_t count;
    int64_t kv_head;

    int64_t queries(const AttentionStep& step) const { return count * (step.heads / step.store.heads); }

    // Units begin .. end - 1 of the segment are seen by at least one of the rows; stretches alike.
    int64_t begin(const AttentionStep& step) const;
    int64_t end(const AttentionStep& step) const;
    int64_t first_stretch(const AttentionStep& step) const { return begin(step) / kStretchUnits; }
    int64_t stretches(const AttentionStep& step) const {
        return (end(step) - 1) / kStretchUnits + 1 - first_stretch(step);
    }

    // Multiplications, about.
    int64_t cost(const AttentionStep& step) const;
};

// The work of a step as items, which may run side by side and in any order, and then merges, which may do so too.
class AttentionPlan {
public:
    // Parts that are a large share of the work of `threads` threads are split into their stretches.
    AttentionPlan(const AttentionStep& step, int threads);

    int64_t items() const { return static_cast<int64_t>(items_.size()); }
    int64_t merges() const { return static_cast<int64_t>(split_.size()); }
    int64_t cost() const { return cost_; }

    void run_item(int64_t item, const Table& table) const;
    void run_merge(int64_t merge, const Table& table) const;

private:
    // A part that is split: where the sums of its queries stand, (stretches, queries).
    struct Split {
        AttentionPart part;
        AttentionSum* sums;
    };

    // One stretch of a split part, or a whole part.
    struct Item {
        AttentionPart part;
        AttentionSum* sums;  // of the split part, or null
        int64_t stretch;
    };

    void split(const std::vector<AttentionPart>& parts, int64_t threads);

    const AttentionStep& step_;
    std::vector<Item> items_;
    std::vector<Split> split_;
    int64_t cost_ = 0;
};

}  // namespace vivace
