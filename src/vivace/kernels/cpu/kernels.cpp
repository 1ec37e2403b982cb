#include "kernels.h"

#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>

#include "attention.h"
#include "ceilings.h"

namespace vivace {
namespace {

constexpr int64_t kStretch = 4096;     // elements of one item of an elementwise operation
constexpr int64_t kStripPanels = 32;  // most panels of an item of few rows

// Instruction sets that this processor has and this build holds, the best first.
const std::vector<Isa>& known_isas() {
    static const std::vector<Isa> known = [] {
        std::vector<Isa> isas;
#if defined(VIVACE_X86)
        if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
            if (__builtin_cpu_supports("avx512vnni")) isas.push_back({"avx512vnni", &kAvx512Table, &kAvx512VnniQuant});
            isas.push_back({"avx512", &kAvx512Table, &kAvx512Quant});
        }
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
            if (__builtin_cpu_supports("avxvnni")) isas.push_back({"avx2vnni", &kAvx2Table, &kAvx2VnniQuant});
            isas.push_back({"avx2", &kAvx2Table, &kAvx2Quant});
        }
#endif
        isas.push_back({"portable", &kPortableTable, &kPortableQuant});
        return isas;
    }();
    return known;
}

const Isa& find_isa(const std::string& name) {
    std::string names;
    for (const Isa& isa : known_isas()) {
        if (name == isa.name) return isa;
        names += (names.empty() ? "" : ", ") + std::string(isa.name);
    }
    throw std::invalid_argument("instruction set '" + name + "' is not available here, expected one of " + names);
}

int at_least_one(int threads) {
    if (threads < 1) throw std::invalid_argument("threads is " + std::to_string(threads) + ", expected 1 or more");
    return threads;
}

}  // namespace

std::vector<std::string> supported_isas() {
    std::vector<std::string> names;
    for (const Isa& isa : known_isas()) names.push_back(isa.name);
    return names;
}

Kernels::Kernels(const std::string& isa, int threads)
    : isa_(find_isa(isa)), table_(*isa_.table), pool_(at_least_one(threads)) {}

void Kernels::linear(const float* x, const Panels& weights, const float* bias, const float* residual, float* y,
                     int64_t rows) {
    const int64_t inputs = weights.inputs, outputs = weights.outputs;
    const auto run = table_.linear_block[static_cast<int>(weights.format)];
    const int64_t panels = (outputs + kPanel - 1) / kPanel;
    const auto compute = [&](int64_t first_row, int64_t row_count, int64_t panel, int64_t count, int64_t stride) {
        const int64_t first_column = panel * kPanel, offset = first_row * outputs + first_column;
        LinearBlock block;
        block.x = x + first_row * inputs;
        block.weights = static_cast<const char*>(weights.data) + first_column * inputs * bytes_of(weights.format);
        block.bias = bias ? bias + first_column : nullptr;
        block.residual = residual ? residual + offset : nullptr;
        block.y = y + offset;
        block.inputs = inputs;
        block.y_stride = outputs;
        block.panel_stride = stride;
        block.columns = outputs - first_column;
        block.rows = static_cast<int>(row_count);
        block.panels = static_cast<int>(count);
        run(block);
    };
    if (rows <= kFewRows) {
        // A strip of panels is read as kStreams streams of equal length side by side.
        const int64_t strips = (panels + kStripPanels * threads() - 1) / (kStripPanels * threads()) * threads();
        share(strips, rows * inputs * (panels * kPanel / std::max<int64_t>(1, strips)), [&](int64_t strip) {
            const int64_t first = panels * strip / strips, last = panels * (strip + 1) / strips;
            const int64_t length = (last - first + kStreams - 1) / kStreams;
            for (int64_t panel = first; panel < std::min(last, first + length); ++panel) {
                compute(0, rows, panel, (last - panel + length - 1) / length, length);
            }
        });
        return;
    }
    const int64_t groups = (panels + kGroupPanels - 1) / kGroupPanels;
    const int64_t row_blocks = (rows + kBlockRows - 1) / kBlockRows;
    share(groups * row_blocks, std::min<int64_t>(rows, kBlockRows) * inputs * kGroupPanels * kPanel, [&](int64_t item) {
        const int64_t panel = item / row_blocks * kGroupPanels, first_row = item % row_blocks * kBlockRows;
        compute(first_row, std::min<int64_t>(rows - first_row, kBlockRows), panel,
                std::min<int64_t>(panels - panel, kGroupPanels), 1);
    });
}

void Kernels::rms_norm(const float* x, const float* weight, float eps, float* y, int64_t rows, int64_t width) {
    share_rows(rows, width * 2, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * width; i < end * width; i += width) table_.rms_norm_row(x + i, weight, eps, width, y + i);
    });
}

void Kernels::layer_norm(const float* x, const float* weight, const float* bias, float eps, float* y, int64_t rows,
                         int64_t width) {
    share_rows(rows, width * 4, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * width; i < end * width; i += width) {
            table_.layer_norm_row(x + i, weight, bias, eps, width, y + i);
        }
    });
}

void Kernels::activation(Activation kind, const float* x, float* y, int64_t count) {
    share((count + kStretch - 1) / kStretch, kStretch * 16, [&](int64_t item) {
        const int64_t begin = item * kStretch;
        table_.activation(kind, x + begin, std::min(kStretch, count - begin), y + begin);
    });
}

void Kernels::soft_cap(const float* x, float cap, float* y, int64_t count) {
    share((count + kStretch - 1) / kStretch, kStretch * 16, [&](int64_t item) {
        const int64_t begin = item * kStretch;
        table_.soft_cap(x + begin, std::min(kStretch, count - begin), cap, y + begin);
    });
}

void Kernels::gate(Activation kind, const float* x, int64_t gate, int64_t up, float* y, int64_t rows, int64_t stride,
                   int64_t width) {
    const int64_t pieces = (width + kStretch - 1) / kStretch;
    share_rows(rows * pieces, std::min(width, kStretch) * 16, [&](int64_t begin, int64_t end) {
        for (int64_t piece = begin; piece < end; ++piece) {
            const int64_t row = piece / pieces, first = piece % pieces * kStretch;
            const float* source = x + row * stride + first;
            table_.gate(kind, source + gate, source + up, std::min(kStretch, width - first), y + row * width + first);
        }
    });
}

void Kernels::sum(const float* x, const float* z, float* y, int64_t count) {
    share((count + kStretch - 1) / kStretch, kStretch, [&](int64_t item) {
        const int64_t begin = item * kStretch;
        table_.sum(x + begin, z + begin, std::min(kStretch, count - begin), y + begin);
    });
}

void Kernels::argmax(const float* x, int64_t* y, int64_t rows, int64_t width) {
    share(rows, width, [&](int64_t row) { y[row] = table_.argmax_row(x + row * width, width); });
}

double Kernels::multiply_add(int64_t rounds) {
    std::vector<double> done(static_cast<size_t>(threads()));
    share(threads(), kSharedCost, [&](int64_t item) { done[static_cast<size_t>(item)] = table_.multiply_add(rounds); });
    return std::accumulate(done.begin(), done.end(), 0.0);
}

double Kernels::byte_dots(int64_t rounds) {
    const auto run = best_byte_dots().run;
    std::vector<double> done(static_cast<size_t>(threads()));
    share(threads(), kSharedCost, [&](int64_t item) { done[static_cast<size_t>(item)] = run(rounds); });
    return std::accumulate(done.begin(), done.end(), 0.0);
}

void Kernels::read_memory(const float* x, int64_t count) {
    const int64_t piece = 1 << 16;  // floats: 256 KB an item
    std::atomic<int> negative{0};
    share(count / piece, kSharedCost, [&](int64_t item) { negative += table_.read_memory(x + item * piece, piece) < 0.0f; });
}

void Kernels::attention(const AttentionStep& step) {
    const AttentionPlan plan(step, threads());
    const int64_t items = plan.items();
    share(items, items ? plan.cost() / items : 0, [&](int64_t item) { plan.run_item(item, table_); });
    for (int64_t merge = 0; merge < plan.merges(); ++merge) plan.run_merge(merge, table_);
}

}  // namespace vivace
