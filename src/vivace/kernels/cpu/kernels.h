// The kernels of one program: an instruction set, a thread pool, and the operations over whole tensors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "draw.h"
#include "experts.h"
#include "kv.h"
#include "narrow.h"
#include "packed.h"
#include "pool.h"
#include "quant_linear.h"
#include "table.h"

namespace vivace {

// Instruction sets that this processor has and this build holds, the best first.
std::vector<std::string> supported_isas();

// The kernels of one instruction set.
struct Isa {
    const char* name;
    const Table* table;
    const QuantTable* quant;
};

// Rows of one sequence and the units that they may see, of which row i is number position + i. The first `paged` units
// stand in pages, in order; the others are listed in the step's slots from slot_begin on.
struct Segment {
    int64_t first_row;
    int64_t row_count;
    const int32_t* pages;
    int64_t paged;
    int64_t slot_begin;
    int64_t units;
    int64_t position;
};

struct AttentionStep {
    const float* q;      // (rows, heads, key_dim)
    const float* sinks;   // (heads) or null
    const float* slopes;  // (heads) or null: a score gets slope * (unit - the row's own)
    const float* biases;  // (heads, 2 * bias_reach + 1) or null: and the bias of this distance
    int64_t bias_reach;
    float* y;  // (rows, heads, value_dim)
    KvStore store;
    int64_t heads;
    std::vector<int64_t> slots;
    std::vector<Segment> segments;
    float scale;
    float soft_cap;  // 0: none
    int64_t behind;  // units that a row sees before itself
    int64_t ahead;   // and after itself
};

// How the outputs of a fused projection become queries, keys and values.
struct QkvStep {
    const float* x;       // (rows, (heads + store.heads) * key_dim + store.heads * value_dim)
    const float* q_norm;  // (key_dim) or null
    const float* k_norm;  // (key_dim) or null
    const float* cos;     // (rows, angles)
    const float* sin;     // (rows, angles)
    const int64_t* slot;  // (rows)
    float* q;             // (rows, heads, key_dim)
    KvStore store;
    int64_t heads, angles;
    float eps;
    bool is_interleaved;
};

class Kernels {
public:
    // Throws std::invalid_argument when `isa` is not one of supported_isas() or `threads` is below one.
    Kernels(const std::string& isa, int threads);

    const char* isa() const { return isa_.name; }
    int threads() const { return pool_.threads(); }

    // y = residual + (x W^T + bias). x (rows, inputs), weights (panels, inputs, 16), y and residual (rows, outputs).
    void linear(const float* x, const Panels& weights, const float* bias, const float* residual, float* y, int64_t rows);

    // The same for quantized weights.
    void quant_linear(const float* x, const QuantLinear& linear, const float* bias, const float* residual, float* y,
                      int64_t rows);

    // y = x / sqrt(mean(x^2) + eps) * weight. x, y (rows, width).
    void rms_norm(const float* x, const float* weight, float eps, float* y, int64_t rows, int64_t width);

    // y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; bias may be null.
    void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, int64_t rows,
                    int64_t width);

    void activation(Activation kind, const float* x, float* y, int64_t count);

    // y = cap tanh(x / cap)
    void soft_cap(const float* x, float cap, float* y, int64_t count);

    // y = act(gate) * up, the halves of each row of x (rows, 2 * width) at these columns. y (rows, width).
    void gate(Activation kind, const float* x, int64_t gate, int64_t up, float* y, int64_t rows, int64_t stride,
              int64_t width);

    // y = x + z
    void sum(const float* x, const float* z, float* y, int64_t count);

    // cos and sin of position * frequency, times scale: (rows, width) each. frequencies (variants, width).
    void angles(const int64_t* position, int64_t position_stride, const int32_t* variant, const float* frequencies,
                float scale, float* cos, float* sin, int64_t rows, int64_t width);

    // Rotate heads of `dim`; cos, sin (rows, angles). x, y (rows, heads, dim).
    void rope(const float* x, const float* cos, const float* sin, float* y, int64_t rows, int64_t heads, int64_t dim,
              int64_t angles, bool is_interleaved);

    // Normalise and rotate queries and keys; keys and values go to their slots.
    void qkv_store(const QkvStep& step, int64_t rows);

    // y[r] = scale * weights[ids[r]], of panels. y (rows, inputs).
    void embedding(const int64_t* ids, const Panels& weights, float scale, float* y, int64_t rows);

    // The same for quantized weights.
    void quant_embedding(const int64_t* ids, const QuantLinear& linear, float scale, float* y, int64_t rows);

    // y[r] = x[chosen[r]]. x, y (.., width).
    void take_rows(const float* x, const int64_t* chosen, float* y, int64_t rows, int64_t width);

    // y[r] = the place of the largest element of row r, the lowest one of equals; a NaN counts as the largest.
    void argmax(const float* x, int64_t* y, int64_t rows, int64_t width);

    // One id of each row. Throws std::invalid_argument for a row whose largest score is not finite.
    void draw(const float* x, const DrawChoice& choice, const double* uniforms, int64_t* y, int64_t rows, int64_t width);

    // The experts of each row and their weights.
    void route(const RouteStep& step, int64_t rows);

    // y[r, j] = W_e x + b_e with e = chosen[r, j], of x[r], or of x[r, j] where x has places. y (rows, count, outputs).
    void grouped_linear(const float* x, bool has_places, const int32_t* chosen, int64_t count, const ExpertMaps& experts,
                        float* y, int64_t rows);

    // y[r] = residual[r] + sum_j weights[r, j] x[r, j]; residual may be null. x (rows, count, width).
    void combine(const float* x, const float* weights, const float* residual, float* y, int64_t rows, int64_t count,
                 int64_t width);

    void rotate_keys(const KvRotation& rotation) { vivace::rotate_keys(rotation, table_); }

    // y = softmax(scale q k^T, capped, biased, masked) v.
    void attention(const AttentionStep& step);

    // The same within the sequences of a step, without a store.
    void attention_packed(const PackedStep& step);

    // y[r] = scale * data[ids[r]], of a plain table. y (rows, width).
    void table_rows(const int64_t* ids, const void* data, Format format, float scale, float* y, int64_t rows,
                    int64_t width);

    // y[i] = the mean of the rows first[i] .. last[i] - 1 of x, summed in float64 in their order. x, y (.., width).
    void mean_rows(const float* x, const int64_t* first, const int64_t* last, float* y, int64_t count, int64_t width);

    // y = x / max(||x||, 1e-12), the norm in float64. x, y (rows, width).
    void unit_rows(const float* x, float* y, int64_t rows, int64_t width);

    // Keep every thread busy with fused multiply-adds; returns the operations done, two per fma.
    double multiply_add(int64_t rounds);

    // Keep every thread busy with dot products of bytes; returns the operations done, two per product and sum.
    double byte_dots(int64_t rounds);

    // Read all of x once, on every thread.
    void read_memory(const float* x, int64_t count);

private:
    // Split `count` items of about `item_cost` multiplications each over the pool; too little work stays on this thread.
    template <class Body>
    void share(int64_t count, int64_t item_cost, const Body& body) {
        if (count * item_cost < (pool_.is_in_step() ? kStepCost : kSharedCost)) {
            for (int64_t item = 0; item < count; ++item) body(item);
            return;
        }
        pool_.run(count, [](const void* context, int64_t item) { (*static_cast<const Body*>(context))(item); }, &body);
    }

    // The same for `count` rows of about `row_cost` each, some at a time: body(begin, end).
    template <class Body>
    void share_rows(int64_t count, int64_t row_cost, const Body& body) {
        const int64_t block = std::max<int64_t>(1, std::min<int64_t>(16, kBlockCost / std::max<int64_t>(1, row_cost)));
        share((count + block - 1) / block, block * row_cost,
              [&](int64_t item) { body(item * block, std::min(count, (item + 1) * block)); });
    }

    // Below about this many multiplications, handing work to another thread costs more than it saves: when the pool may
    // sleep, and within a step.
    static constexpr int64_t kSharedCost = 200'000;
    static constexpr int64_t kStepCost = 20'000;
    static constexpr int64_t kBlockCost = 40'000;

    const Isa& isa_;
    const Table& table_;
    Pool pool_;

    friend class Tape;
};

}  // namespace vivace
