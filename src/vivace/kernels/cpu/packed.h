// What encoders ask for beside the common operations: attention within the sequences of a step, straight from the fused
// projection, table rows, and means of rows.
#pragma once

#include <cstdint>

#include "table.h"

namespace vivace {

// Each row sees rows of its own sequence: `behind` before itself and `ahead` after itself.
struct PackedStep {
    const float* qkv;       // (rows, (heads + 2 * kv_heads) * dim): the queries, then the keys, then the values
    const int64_t* starts;  // (sequences + 1): sequence s owns rows starts[s] .. starts[s + 1] - 1
    float* y;               // (rows, heads * dim)
    int64_t sequences, heads, kv_heads, dim;
    float scale;
    float soft_cap;  // 0: none
    int64_t behind, ahead;
    const float* slopes;  // (heads) or null, as in AttentionStep
    const float* biases;  // (heads, 2 * bias_reach + 1) or null
    int64_t bias_reach;

    int64_t width() const { return (heads + 2 * kv_heads) * dim; }
};

// The rows of one sequence for one key head.
void run_packed_part(const PackedStep& step, int64_t sequence, int64_t kv_head, const Table& table);

}  // namespace vivace
