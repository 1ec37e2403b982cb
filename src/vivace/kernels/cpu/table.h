// The kernels of one instruction set as function pointers, chosen once when a program starts.
#pragma once

#include <cstdint>

namespace vivace {

constexpr int kPanel = 16;       // outputs of a packed panel: the lanes of one Vec16
constexpr int kGroupPanels = 3;  // panels that one block computes at a time
constexpr int kBlockRows = 64;   // most rows of one block

// One block of a linear map: up to kBlockRows rows times up to kGroupPanels panels.
struct LinearBlock {
    const float* x;         // (rows, inputs)
    const float* weights;   // (panels, inputs, 16)
    const float* bias;      // (columns) or null
    const float* residual;  // (rows, columns) with stride y_stride, or null
    float* y;               // (rows, columns) with stride y_stride
    int64_t inputs;
    int64_t y_stride;
    int rows;
    int panels;
    int columns;  // outputs of this block; the last panel may hold fewer than 16
};

struct Table {
    const char* name;
    void (*linear_block)(const LinearBlock&);
    void (*rms_norm_row)(const float* x, const float* weight, float eps, int64_t width, float* y);
};

extern const Table kAvx512Table;
extern const Table kAvx2Table;
extern const Table kPortableTable;

}  // namespace vivace
