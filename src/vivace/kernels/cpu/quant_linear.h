// A linear map of quantized weights: matrices of the same inputs, one below the other, each in its own layout.
#pragma once

#include <vector>

#include "quant_matrix.h"

namespace vivace {

class QuantLinear {
public:
    QuantLinear(std::vector<QuantMatrix> matrices, int planes);

    struct Block {
        const QuantMatrix* matrix;
        int64_t first_panel;
        int64_t first_column;  // of all outputs
        int panels;
        int columns;
    };

    // The same matrices, which both share, over activations of one or two planes.
    QuantLinear with_planes(int planes) const { return QuantLinear(matrices_, planes); }

    int planes() const { return planes_; }
    int64_t inputs() const { return matrices_.front().inputs(); }
    int64_t outputs() const { return outputs_; }
    const std::vector<Block>& blocks() const { return blocks_; }

    // The weights of one output, (inputs), bit for bit those of the file.
    void read_row(int64_t output, float* values) const;

private:
    std::vector<QuantMatrix> matrices_;
    std::vector<Block> blocks_;
    int64_t outputs_;
    int planes_;
};

}  // namespace vivace
