// y = x / sqrt(mean(x^2) + eps) * w for one row, written once over a Vec16.
//
// Squares are summed in 16 lanes, lane i taking every 16th element, and the lanes are added in one fixed tree: the order
// depends on the width alone.
#pragma once

#include <math.h>

#include "table.h"

namespace vivace {

template <class Vec16>
struct NormKernel {
    static void rms_norm_row(const float* x, const float* weight, float eps, int64_t width, float* y) {
        const int64_t whole = width - width % kPanel;
        Vec16 squares = Vec16::zero();
        for (int64_t i = 0; i < whole; i += kPanel) {
            const Vec16 v = Vec16::load(x + i);
            squares = fma(v, v, squares);
        }
        alignas(64) float tail[kPanel] = {};
        for (int64_t i = whole; i < width; ++i) tail[i - whole] = x[i];
        const Vec16 last = Vec16::load(tail);
        squares = fma(last, last, squares);

        const float factor = 1.0f / ::sqrtf(lane_sum(squares) / static_cast<float>(width) + eps);
        for (int64_t i = 0; i < whole; i += kPanel) {
            mul(mul(Vec16::load(x + i), Vec16::all(factor)), Vec16::load(weight + i)).store(y + i);
        }
        for (int64_t i = whole; i < width; ++i) y[i] = x[i] * factor * weight[i];
    }

private:
    static float lane_sum(Vec16 v) {
        alignas(64) float lanes[kPanel];
        v.store(lanes);
        for (int half = kPanel / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
        return lanes[0];
    }
};

}  // namespace vivace
