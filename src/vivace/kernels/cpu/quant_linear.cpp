#include "quant_linear.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "kernels.h"

namespace vivace {

QuantLinear::QuantLinear(std::vector<QuantMatrix> matrices, int planes)
    : matrices_(std::move(matrices)), outputs_(0), planes_(planes) {
    if (matrices_.empty()) throw std::invalid_argument("a quantized linear map needs a matrix");
    if (planes != 1 && planes != 2) throw std::invalid_argument("activations have one or two planes");
    for (const QuantMatrix& matrix : matrices_) {
        if (matrix.inputs() != inputs()) throw std::invalid_argument("the matrices have different inputs");
        const int64_t panels = matrix.panels(), whole = panels / kGroupPanels * kGroupPanels;
        for (int64_t first = 0; first < panels; first += first < whole ? kGroupPanels : 1) {
            Block block;
            block.matrix = &matrix;
            block.first_panel = first;
            block.first_column = outputs_ + first * kPanel;
            block.panels = first < whole ? kGroupPanels : 1;
            block.columns = static_cast<int>(std::min<int64_t>(block.panels * kPanel, matrix.outputs() - first * kPanel));
            blocks_.push_back(block);
        }
        outputs_ += matrix.outputs();
    }
}

void QuantLinear::read_row(int64_t output, float* values) const {
    auto matrix = matrices_.begin();
    while (output >= matrix->outputs()) output -= (matrix++)->outputs();
    matrix->read_row(output, values);
}

void Kernels::quant_linear(const float* x, const QuantLinear& linear, const float* bias, const float* residual, float* y,
                           int64_t rows) {
    const int planes = linear.planes();
    const int64_t inputs = linear.inputs(), outputs = linear.outputs(), groups = inputs / kGroup;
    const int64_t tile_bytes = groups * activation_bytes(planes), tiles = (rows + kTile - 1) / kTile;
    // Kept from call to call; the threads of the pool read it, only this one resizes it.
    thread_local std::vector<ActivationGroup> room;
    const size_t needed = static_cast<size_t>(tiles * tile_bytes) / sizeof(ActivationGroup);
    if (room.size() < needed) room.resize(needed);
    auto* const activations = reinterpret_cast<uint8_t*>(room.data());

    share(tiles, kTile * inputs * 4, [&](int64_t tile) {
        const int64_t first = tile * kTile;
        const int count = static_cast<int>(std::min<int64_t>(rows - first, kTile));
        isa_.quant->quantize_tile({x + first * inputs, activations + tile * tile_bytes, groups, planes, count});
    });

    const auto& blocks = linear.blocks();
    const int64_t count = static_cast<int64_t>(blocks.size()), row_blocks = (rows + kQuantRows - 1) / kQuantRows;
    const auto compute = [&](int64_t index, int64_t row_block) {
        const QuantLinear::Block& from = blocks[static_cast<size_t>(index)];
        const int64_t first_row = row_block * kQuantRows, offset = first_row * outputs + from.first_column;
        QuantBlock block;
        block.layout = &from.matrix->layout();
        block.weights = from.matrix->panel(from.first_panel);
        block.activations = activations + first_row / kTile * tile_bytes;
        block.bias = bias ? bias + from.first_column : nullptr;
        block.residual = residual ? residual + offset : nullptr;
        block.y = y + offset;
        block.groups = groups;
        block.y_stride = outputs;
        block.planes = planes;
        block.panels = from.panels;
        block.rows = static_cast<int>(std::min<int64_t>(rows - first_row, kQuantRows));
        block.columns = from.columns;
        block.is_last = index + 1 == count;
        isa_.quant->block(block);
    };
    // Rows outside, so that their activations stay in the cache while the weights pass.
    const int64_t cost = std::min<int64_t>(rows, kQuantRows) * inputs * kGroupPanels * kPanel / 4;
    share(count * row_blocks, cost, [&](int64_t item) { compute(item % count, item / count); });
}

void Kernels::quant_embedding(const int64_t* ids, const QuantLinear& linear, float scale, float* y, int64_t rows) {
    const int64_t inputs = linear.inputs();
    share_rows(rows, inputs * 16, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            float* out = y + row * inputs;
            linear.read_row(ids[row], out);
            if (scale != 1.0f) {
                for (int64_t i = 0; i < inputs; ++i) out[i] *= scale;
            }
        }
    });
}

}  // namespace vivace
