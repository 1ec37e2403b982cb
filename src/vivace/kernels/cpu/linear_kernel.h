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
    static constexpr int kSumStride = kGroupPanels * kPanel;

    static void block(const LinearBlock& b) {
        alignas(64) float sums[kBlockRows * kSumStride] = {};
        for (int64_t begin = 0; begin < b.inputs; begin += kStretch) {
            const int64_t count = b.inputs - begin < kStretch ? b.inputs - begin : kStretch;
            switch (b.panels) {
                case 1: sweep<1>(b, begin, count, sums); break;
                case 2: sweep<2>(b, begin, count, sums); break;
                default: sweep<3>(b, begin, count, sums); break;
            }
        }
        for (int row = 0; row < b.rows; ++row) finish(b, row, sums + row * kSumStride);
    }

private:
    template <int Panels>
    static void sweep(const LinearBlock& b, int64_t begin, int64_t count, float* sums) {
        int row = 0;
        for (; row + Vec16::kTileRows <= b.rows; row += Vec16::kTileRows) {
            tile<Vec16::kTileRows, Panels>(b, row, begin, count, sums);
        }
        rest<Vec16::kTileRows - 1, Panels>(b, row, begin, count, sums);
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
        const int64_t panel_stride = b.inputs * kPanel;
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

    static void finish(const LinearBlock& b, int row, const float* sums) {
        float* y = b.y + row * b.y_stride;
        const float* residual = b.residual ? b.residual + row * b.y_stride : nullptr;
        for (int c = 0; c < b.columns; ++c) {
            float value = sums[c];
            if (b.bias) value += b.bias[c];
            if (residual) value = residual[c] + value;
            y[c] = value;
        }
    }
};

}  // namespace vivace
