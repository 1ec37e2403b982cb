// Attention of encoders. One part is a sequence and a key head: its keys are turned into panels once, then all its rows
// pass over them, a block of queries at a time.
#include "packed.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels.h"

namespace vivace {
namespace {

// Working memory of one thread, kept between calls.
struct Scratch {
    std::vector<float> floats;
    std::vector<const void*> keys, values;

    float* room(int64_t count) {
        if (static_cast<size_t>(count) > floats.size()) floats.resize(static_cast<size_t>(count));
        return floats.data();
    }
};

int64_t panels_of(int64_t units) { return (units + kPanel - 1) / kPanel; }

// Keys (units, stride) become panels (dim, 16), values stay rows; the lanes after the last unit keep what they held.
void gather(const float* keys, const float* values, int64_t stride, int64_t units, int64_t dim, float* key_panels,
            float* value_rows) {
    for (int64_t unit = 0; unit < units; ++unit, keys += stride, values += stride, value_rows += dim) {
        float* panel = key_panels + unit / kPanel * kPanel * dim + unit % kPanel;
        for (int64_t d = 0; d < dim; ++d) panel[d * kPanel] = keys[d];
        std::memcpy(value_rows, values, sizeof(float) * dim);
    }
}

// Queries first .. last - 1 of a part, in row order; query i is row i / group and head i % group of those that share the
// key head. Panels that none of them sees are left out.
void run_block(const PackedStep& step, int64_t first_row, int64_t units, int64_t kv_head, int64_t first, int64_t last,
               const Scratch& scratch, float* scores, const Table& table) {
    const int64_t group = step.heads / step.kv_heads;
    const int64_t base = std::max<int64_t>(0, first / group - step.behind) / kPanel;  // the first panel seen
    AttentionBlock block;
    block.query_count = 0;
    for (int64_t query = first; query < last; ++query) {
        const int64_t row = query / group, head = kv_head * group + query % group;
        const int i = block.query_count++;
        block.queries[i] = step.qkv + (first_row + row) * step.width() + head * step.dim;
        block.sums[i].output = step.y + ((first_row + row) * step.heads + head) * step.dim;
        block.biases[i] = step.biases ? step.biases + head * (2 * step.bias_reach + 1) + step.bias_reach : nullptr;
        block.slopes[i] = step.slopes ? step.slopes[head] : 0.0f;
        block.at[i] = row - base * kPanel;
        block.first[i] = std::max<int64_t>(0, row - step.behind) - base * kPanel;
        block.last[i] = std::min(units, row + 1 + step.ahead) - base * kPanel;
    }
    block.keys = scratch.keys.data() + base;
    block.values = scratch.values.data() + base;
    block.format = Format::kF32;
    block.units = block.last[block.query_count - 1];
    block.key_dim = block.value_dim = step.dim;
    block.scale = step.scale;
    block.soft_cap = step.soft_cap;
    block.scores = scores;
    block.score_stride = score_stride(block.units);
    block.bias_reach = step.bias_reach;
    block.has_slopes = step.slopes != nullptr;
    table.attention_block(block);
    for (int i = 0; i < block.query_count; ++i) table.attention_finish(block.sums[i], nullptr, step.dim);
}

}  // namespace

void run_packed_part(const PackedStep& step, int64_t sequence, int64_t kv_head, const Table& table) {
    thread_local Scratch scratch;
    const int64_t first_row = step.starts[sequence], units = step.starts[sequence + 1] - first_row;
    const int64_t panels = panels_of(units), panel_size = kPanel * step.dim;
    float* const keys = scratch.room(2 * panels * panel_size + kBlockQueries * score_stride(units));
    float* const values = keys + panels * panel_size;
    const float* const source = step.qkv + first_row * step.width() + (step.heads + kv_head) * step.dim;
    gather(source, source + step.kv_heads * step.dim, step.width(), units, step.dim, keys, values);
    scratch.keys.clear();
    scratch.values.clear();
    for (int64_t panel = 0; panel < panels; ++panel) {
        scratch.keys.push_back(keys + panel * panel_size);
        scratch.values.push_back(values + panel * panel_size);
    }
    const int64_t queries = units * (step.heads / step.kv_heads);
    for (int64_t first = 0; first < queries; first += kBlockQueries) {
        const int64_t last = std::min<int64_t>(queries, first + kBlockQueries);
        run_block(step, first_row, units, kv_head, first, last, scratch, values + panels * panel_size, table);
    }
}

void Kernels::attention_packed(const PackedStep& step) {
    const int64_t rows = step.starts[step.sequences], count = step.sequences * step.kv_heads;
    if (rows == 0) return;
    const int64_t cost = rows / step.sequences * (rows / step.sequences + 2) * 2 * step.dim * step.heads / step.kv_heads;
    share(count, cost, [&](int64_t item) {
        run_packed_part(step, item / step.kv_heads, item % step.kv_heads, table_);
    });
}

void Kernels::table_rows(const int64_t* ids, const void* data, Format format, float scale, float* y, int64_t rows,
                         int64_t width) {
    share_rows(rows, width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            float* out = y + row * width;
            if (format == Format::kF32) {
                std::memcpy(out, static_cast<const float*>(data) + ids[row] * width, sizeof(float) * width);
            } else {
                const auto widen = format == Format::kBf16 ? &from_bf16 : &from_f16;
                const uint16_t* halves = static_cast<const uint16_t*>(data) + ids[row] * width;
                for (int64_t i = 0; i < width; ++i) out[i] = widen(halves[i]);
            }
            if (scale != 1.0f) {
                for (int64_t i = 0; i < width; ++i) out[i] *= scale;
            }
        }
    });
}

void Kernels::mean_rows(const float* x, const int64_t* first, const int64_t* last, float* y, int64_t count,
                        int64_t width) {
    share(count, width * 64, [&](int64_t item) {
        thread_local std::vector<double> sums;
        sums.assign(static_cast<size_t>(width), 0.0);
        for (int64_t row = first[item]; row < last[item]; ++row) {
            for (int64_t i = 0; i < width; ++i) sums[i] += static_cast<double>(x[row * width + i]);
        }
        const double rows = static_cast<double>(last[item] - first[item]);
        for (int64_t i = 0; i < width; ++i) y[item * width + i] = static_cast<float>(sums[i] / rows);
    });
}

void Kernels::unit_rows(const float* x, float* y, int64_t rows, int64_t width) {
    share_rows(rows, width * 8, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* from = x + row * width;
            double sum = 0.0;
            for (int64_t i = 0; i < width; ++i) sum += static_cast<double>(from[i]) * static_cast<double>(from[i]);
            const double norm = std::max(std::sqrt(sum), 1e-12);
            for (int64_t i = 0; i < width; ++i) y[row * width + i] = static_cast<float>(static_cast<double>(from[i]) / norm);
        }
    });
}

}  // namespace vivace
