// The kernels of one program: an instruction set, a thread pool, and the operations over whole tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool.h"
#include "table.h"

namespace vivace {

// Instruction sets that this processor has and this build holds, the best first.
std::vector<std::string> supported_isas();

enum class Format { kF32, kBf16, kF16 };

// Rows of one sequence and the units that they may see. Row i stands at unit position + i of the listed ones.
struct Segment {
    int64_t first_row;
    int64_t row_count;
    int64_t slot_begin;  // its units are slots[slot_begin .. slot_begin + units]
    int64_t units;
    int64_t position;
};

struct AttentionStep {
    const float* q;      // (rows, heads, key_dim)
    const void* keys;    // (slots, kv_heads, key_dim)
    const void* values;  // (slots, kv_heads, value_dim)
    const float* sinks;  // (heads) or null
    float* y;            // (rows, heads, value_dim)
    Format format;
    int64_t heads, kv_heads, key_dim, value_dim;
    std::vector<int64_t> slots;
    std::vector<Segment> segments;
    float scale;
    float soft_cap;  // 0: none
    int64_t behind;  // units that a row sees before itself
    int64_t ahead;   // and after itself
};

class Kernels {
public:
    // Throws std::invalid_argument when `isa` is not one of supported_isas() or `threads` is below one.
    Kernels(const std::string& isa, int threads);

    const char* isa() const { return table_.name; }
    int threads() const { return pool_.threads(); }

    // y = residual + (x W^T + bias). x (rows, inputs), weights (panels, inputs, 16), y and residual (rows, outputs).
    void linear(const float* x, const float* weights, const float* bias, const float* residual, float* y, int64_t rows,
                int64_t inputs, int64_t outputs);

    // y = x / sqrt(mean(x^2) + eps) * weight. x, y (rows, width).
    void rms_norm(const float* x, const float* weight, float eps, float* y, int64_t rows, int64_t width);

    // y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; bias may be null.
    void layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, int64_t rows,
                    int64_t width);

    void activation(Activation kind, const float* x, float* y, int64_t count);

    // y = cap tanh(x / cap)
    void soft_cap(const float* x, float cap, float* y, int64_t count);

    // y = softmax(scale q k^T, capped, masked) v.
    void attention(const AttentionStep& step);

    // Keep every thread busy with fused multiply-adds; returns the operations done, two per fma.
    double multiply_add(int64_t rounds);

    // Keep every thread busy with dot products of bytes; returns the operations done, two per product and sum.
    double byte_dots(int64_t rounds);

    // Read all of x once, on every thread.
    void read_memory(const float* x, int64_t count);

private:
    // Split `count` items of about `item_cost` multiplications each over the pool; too little work stays on this thread.
    template <class Body>
    void share(int64_t count, int64_t item_cost, const Body& body);

    const Table& table_;
    Pool pool_;
};

}  // namespace vivace
