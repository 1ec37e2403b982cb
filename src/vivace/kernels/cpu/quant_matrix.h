// One matrix of quantized weights: packing it, and reading its values back.
#pragma once

#include "quant.h"

namespace vivace {

// Some rows of a matrix before they are packed: rows of codes, and factors per `span` or `group` inputs.
struct QuantRows {
    const uint8_t* codes;         // (rows, inputs)
    const void* coarse;           // (rows, inputs / span) float16 or float32, as the layout says
    const void* coarse_minimum;   // like coarse, or null
    const int8_t* fine;           // (rows, inputs / group), or null
    const int8_t* fine_minimum;   // like fine, or null
    int64_t rows;
};

class QuantMatrix {
public:
    // `data` holds data_bytes() bytes and outlives the matrix.
    QuantMatrix(const QuantLayout& layout, int64_t outputs, int64_t inputs, uint8_t* data);

    // Throws std::invalid_argument for a layout that no kernel reads.
    static int64_t data_bytes(const QuantLayout& layout, int64_t outputs, int64_t inputs);

    const QuantLayout& layout() const { return layout_; }
    int64_t outputs() const { return outputs_; }
    int64_t inputs() const { return groups_ * kGroup; }
    int64_t groups() const { return groups_; }
    int64_t panels() const { return (outputs_ + 15) / 16; }
    const uint8_t* panel(int64_t index) const { return data_ + index * layout_.panel_bytes(groups_); }

    // Pack rows that are outputs first_output and on; first_output is a multiple of 16.
    void pack(int64_t first_output, const QuantRows& rows);

    // The weights of one output, (inputs), as the file's format defines them, bit for bit.
    void read_row(int64_t output, float* values) const;

private:
    // Where output's 16 begin within their block: panels of the block, and which of them it is.
    struct Place {
        int64_t block_panel;  // first panel of the block
        int panels;           // of the block
        int panel;            // within the block
        int lane;
    };
    Place place(int64_t output) const;

    QuantLayout layout_;
    int64_t outputs_, groups_;
    uint8_t* data_;
};

}  // namespace vivace
