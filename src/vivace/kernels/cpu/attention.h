// Attention over whole steps: cuts the rows into parts, one key head each, and prepares the memory that a part needs.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace vivace {

// Some rows of one segment and one key head.
struct AttentionPart {
    const Segment* segment;
    int64_t first;  // row within the segment
    int64_t count;
    int64_t kv_head;

    // Units begin .. end - 1 of the segment are seen by at least one of the rows.
    int64_t begin(const AttentionStep& step) const;
    int64_t end(const AttentionStep& step) const;

    // The first unit of the panel that `begin` stands in.
    int64_t base(const AttentionStep& step) const;

    // Multiplications, about.
    int64_t cost(const AttentionStep& step) const;
};

std::vector<AttentionPart> attention_parts(const AttentionStep& step);

void run_attention_part(const AttentionStep& step, const AttentionPart& part, const Table& table);

}  // namespace vivace
