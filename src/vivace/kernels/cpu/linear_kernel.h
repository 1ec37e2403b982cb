// y = x W^T + b for one block, written once over a Vec16 and the type of the weights.
//
// Each output element is one chain of fused multiply-adds over the inputs, from the first to the last, starting at zero.
// Tiling only changes which chains run side by side, and a sum kept in memory between two stretches of inputs is kept
// exactly: so the result is the same bits for any batch, tile, thread count and instruction set.
#pragma once

#include "math16.h"

namespace vivace {

// How weights stand in memory. Halves are widened in registers, exactly: the result is that of their float32 copies.
struct F32Weights {
    using Element = float;
    template <class Vec16>
    static Vec16 load(const Element* p) {
        return Vec16::load(p);
    }
};
struct Bf16Weights {
    using Element = uint16_t;
    template <class Vec16>
    static Vec16 load(const Element* p) {
        return Vec16::load_bf16(p);
    }
};
struct F16Weights {
    using Element = uint16_t;
    template <class Vec16>
    static Vec16 load(const Element* p) {
        return Vec16::load_f16(p);
    }
};

template <class Vec16, class Weights>
struct LinearKernel {
    static constexpr int64_t kStretch = 256;  // inputs per pass: 3 panels of them are 48 KB, read again by each row tile
    static constexpr int kSumStride = kStreams * kPanel;
    static constexpr int kFewTile = Vec16::kTileRows > 1 ? Vec16::kTileRows / 2 : 1;  // rows beside kStreams panels

    static void block(const LinearBlock& b) {
        alignas(64) float sums[kBlockRows * kSumStride] = {};
        if (b.rows <= kFewRows) {
            passes<kFewTile, kStreams>(b, b.inputs, sums);
        } else {
            passes<Vec16::kTileRows, kGroupPanels>(b, kStretch, sums);
        }
        for (int row = 0; row < b.rows; ++row)
            for (int panel = 0; panel < b.panels; ++panel) finish(b, row, panel, sums + row * kSumStride + panel * kPanel);
    }

private:
    template <int TileRows, int Panels>
    static void passes(const LinearBlock& b, int64_t stretch, float* sums) {
        if constexpr (Panels > 1) {
            if (b.panels < Panels) return passes<TileRows, Panels - 1>(b, stretch, sums);
        }
        for (int64_t begin = 0; begin < b.inputs; begin += stretch) {
            const int64_t count = b.inputs - begin < stretch ? b.inputs - begin : stretch;
            int row = 0;
            for (; row + TileRows <= b.rows; row += TileRows) tile<TileRows, Panels>(b, row, begin, count, sums);
            rest<TileRows - 1, Panels>(b, row, begin, count, sums);
        }
    }

    // The last rows, fewer than a full tile, as one smaller tile.
    template <int Rows, int Panels>
    static void rest(const LinearBlock& b, int row, int64_t begin, int64_t count, float* sums) {
        if constexpr (Rows > 0) {
            if (b.rows - row == Rows) {
                tile<Rows, Panels>(b, row, begin, count, sums);
            } else {
                rest<Rows - 1, Panels>(b, row, begin, count, sums);
            }
        }
    }

    template <int Rows, int Panels>
    static void tile(const LinearBlock& b, int row, int64_t begin, int64_t count, float* sums) {
        float* kept = sums + row * kSumStride;
        const float* x = b.x + row * b.inputs + begin;
        const auto* weights = static_cast<const typename Weights::Element*>(b.weights) + begin * kPanel;
        const int64_t panel_stride = b.panel_stride * b.inputs * kPanel;
        Vec16 sum[Rows][Panels];
        for (int r = 0; r < Rows; ++r)
            for (int p = 0; p < Panels; ++p) sum[r][p] = Vec16::load(kept + r * kSumStride + p * kPanel);
        for (int64_t k = 0; k < count; ++k) {
            Vec16 w[Panels];
            for (int p = 0; p < Panels; ++p) w[p] = Weights::template load<Vec16>(weights + p * panel_stride + k * kPanel);
            for (int r = 0; r < Rows; ++r) {
                const Vec16 input = Vec16::all(x[r * b.inputs + k]);
                for (int p = 0; p < Panels; ++p) sum[r][p] = fma(w[p], input, sum[r][p]);
            }
        }
        for (int r = 0; r < Rows; ++r)
            for (int p = 0; p < Panels; ++p) sum[r][p].store(kept + r * kSumStride + p * kPanel);
    }

    static void finish(const LinearBlock& b, int row, int panel, const float* sums) {
        const int64_t first = panel * b.panel_stride * kPanel, left = b.columns - first;
        float* y = b.y + row * b.y_stride + first;
        const float* residual = b.residual ? b.residual + row * b.y_stride + first : nullptr;
        const int count = left < kPanel ? static_cast<int>(left) : kPanel;
        for (int c = 0; c < count; ++c) {
            float value = sums[c];
            if (b.bias) value += b.bias[first + c];
            if (residual) value = residual[c] + value;
            y[c] = value;
        }
    }
};

}  // namespace vivace
