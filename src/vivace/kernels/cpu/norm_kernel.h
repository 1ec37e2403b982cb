// rms_norm and layer_norm of one row, written once over a Vec16.
//
// Sums are taken in 16 lanes, lane i adding every 16th element, and the lanes are added in one fixed tree: the order
// depends on the width alone.
#pragma once

#include <math.h>

#include "math16.h"

namespace vivace {

template <class Vec16>
struct NormKernel {
    // y = x / sqrt(mean(x^2) + eps) * weight
    static void rms_norm_row(const float* x, const float* weight, float eps, int64_t width, float* y) {
        const float factor = inverse_root(mean_square(x, 0.0f, width), eps);
        for (int64_t i = 0; i < width; i += kPanel) {
            const Vec16 scaled = mul(load_some<Vec16>(x + i, width - i, 0.0f), Vec16::all(factor));
            store_some(mul(scaled, load_some<Vec16>(weight + i, width - i, 0.0f)), y + i, width - i);
        }
    }

    // y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias
    static void layer_norm_row(const float* x, const float* weight, const float* bias, float eps, int64_t width,
                               float* y) {
        Vec16 sum = Vec16::zero();
        for (int64_t i = 0; i < width; i += kPanel) sum = add(sum, load_some<Vec16>(x + i, width - i, 0.0f));
        const float mean = lane_sum(sum) / static_cast<float>(width);
        const float factor = inverse_root(mean_square(x, mean, width), eps);
        for (int64_t i = 0; i < width; i += kPanel) {
            const Vec16 centred = sub(load_some<Vec16>(x + i, width - i, 0.0f), Vec16::all(mean));
            Vec16 value = mul(mul(centred, Vec16::all(factor)), load_some<Vec16>(weight + i, width - i, 0.0f));
            if (bias) value = add(value, load_some<Vec16>(bias + i, width - i, 0.0f));
            store_some(value, y + i, width - i);
        }
    }

private:
    // mean((x - centre)^2)
    static float mean_square(const float* x, float centre, int64_t width) {
        Vec16 squares = Vec16::zero();
        for (int64_t i = 0; i < width; i += kPanel) {
            const Vec16 v = sub(load_some<Vec16>(x + i, width - i, centre), Vec16::all(centre));
            squares = fma(v, v, squares);
        }
        return lane_sum(squares) / static_cast<float>(width);
    }

    static float inverse_root(float mean_square, float eps) { return 1.0f / ::sqrtf(mean_square + eps); }
};

}  // namespace vivace
