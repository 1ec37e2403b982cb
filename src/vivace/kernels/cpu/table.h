// The kernels of one instruction set as function pointers, chosen once when a program starts.
#pragma once

#include <stdint.h>

#include "draw.h"

namespace vivace {

// Adding and subtracting this (1.5 * 2^23) rounds a float to a whole number, which then stands in its lowest bits.
constexpr float kRounder = 12582912.0f;

constexpr int kPanel = 16;       // outputs of a packed panel: the lanes of one Vec16
constexpr int kGroupPanels = 3;  // panels that one block computes at a time
constexpr int kBlockRows = 64;   // most rows of one block
constexpr int kFewRows = 4;      // so few rows wait for memory: their panels are read as kStreams long streams
constexpr int kStreams = 4;

// One block of a linear map: up to kBlockRows rows times up to kGroupPanels panels, or up to kFewRows rows times up to
// kStreams panels. Each panel stands panel_stride panels after the one before.
struct LinearBlock {
    const float* x;         // (rows, inputs)
    const void* weights;    // (panels, inputs, 16), of the kernel's own type
    const float* bias;      // (columns) or null
    const float* residual;  // (rows, columns) with stride y_stride, or null
    float* y;               // (rows, columns) with stride y_stride
    int64_t inputs;
    int64_t y_stride;
    int64_t panel_stride;
    int64_t columns;  // outputs from the block's first one to the last one of all; the last panel may hold fewer than 16
    int rows;
    int panels;
};

enum class Activation { kSilu, kGelu, kGeluTanh, kRelu, kRelu2, kTanh };

// How weights or a store keep their numbers; kI8 is of stores alone: a byte for each, and a scale for each vector.
enum class Format { kF32, kBf16, kF16, kI8 };

constexpr int kBlockQueries = 32;  // most queries of one attention block
constexpr int kNextPanels = 4;     // panels that are fetched ahead

// What a query takes from some units: sums over them of e^(score - largest) v and of e^(score - largest).
struct AttentionSum {
    float* output;  // (value_dim)
    float largest;  // score
    float total;
};

// Some queries over some units of one sequence, for one key head. Query i sees units first[i] .. last[i] - 1, at least
// one. Units come in panels of 16; what the panels hold beyond the units that are seen does not matter.
struct AttentionBlock {
    const float* queries[kBlockQueries];  // (key_dim) each
    AttentionSum sums[kBlockQueries];     // the results
    const float* biases[kBlockQueries];   // what is added to a score: biases[i][unit - at[i]], or null
    float slopes[kBlockQueries];          // and slopes[i] * (unit - at[i])
    int64_t at[kBlockQueries];
    int64_t first[kBlockQueries];
    int64_t last[kBlockQueries];
    int query_count;
    int64_t bias_reach;  // biases are read from -bias_reach to bias_reach: farther units get what stands at the end
    bool has_slopes;
    const void* const* keys;    // (units / 16) pointers to (key_dim, 16)
    const void* const* values;  // (units / 16) pointers to (16, value_dim)
    const float* const* key_scales;    // (units / 16) pointers to (16), of Format::kI8 alone
    const float* const* value_scales;  // the same
    const void* next_keys[kNextPanels] = {};  // panels that the same thread reads after this block; null: none
    Format format;
    int64_t units;
    int64_t key_dim;
    int64_t value_dim;
    float scale;
    float soft_cap;        // 0: none
    float* scores;         // scratch (query_count, score_stride)
    int64_t score_stride;  // as `score_stride` says
};

// Room for the scores of one query: whole panels, and one more, because the last vector begins where the query wants.
constexpr int64_t score_stride(int64_t units) { return (units + kPanel - 1) / kPanel * kPanel + kPanel; }

struct Table {
    const char* name;
    void (*linear_block[3])(const LinearBlock&);  // for weights in each Format: float32, bfloat16, float16
    void (*rms_norm_row)(const float* x, const float* weight, float eps, int64_t width, float* y);
    void (*layer_norm_row)(const float* x, const float* weight, const float* bias, float eps, int64_t width, float* y);
    void (*activation)(Activation kind, const float* x, int64_t count, float* y);
    void (*soft_cap)(const float* x, int64_t count, float cap, float* y);
    void (*gate)(Activation kind, const float* gate, const float* up, int64_t count, float* y);
    void (*sum)(const float* x, const float* z, int64_t count, float* y);
    void (*rope_head)(const float* x, const float* cos, const float* sin, int64_t count, int64_t dim, bool is_interleaved,
                      float* y);
    void (*route_scores)(const float* x, int64_t count, bool is_sigmoid, float* y);
    int64_t (*argmax_row)(const float* x, int64_t count);
    float (*draw_largest)(const float* x, int64_t count);
    double (*draw_weigh)(const float* x, int64_t count, const DrawScale& scale, double* weights);
    void (*attention_block)(AttentionBlock&);
    // Add what the same query takes from later units.
    void (*attention_merge)(AttentionSum& sum, const AttentionSum& later, int64_t value_dim);
    // The softmax-weighted mean, in place of `output`; `sink` is one more logit, without a value, or null.
    void (*attention_finish)(AttentionSum& sum, const float* sink, int64_t value_dim);
    double (*multiply_add)(int64_t rounds);
    float (*read_memory)(const float* x, int64_t count);
};

extern const Table kAvx512Table;
extern const Table kAvx2Table;
extern const Table kPortableTable;

}  // namespace vivace
