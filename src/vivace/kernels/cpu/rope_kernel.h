// Rotary position embedding of one head, written once over a Vec16.
//
// For a pair (a, b): a' = a cos - b sin, b' = b cos + a sin, each product and sum rounded by itself.
#pragma once

#include "math16.h"

namespace vivace {

template <class Vec16>
struct RopeKernel {
    // Rotate the first 2 * count dims of x, which has `dim`; the rest is copied. y may be x.
    static void head(const float* x, const float* cos, const float* sin, int64_t count, int64_t dim, bool is_interleaved,
                     float* y) {
        if (is_interleaved) {
            for (int64_t i = 0; i < count; ++i) {
                const float a = x[2 * i], b = x[2 * i + 1];
                const float a_cos = a * cos[i], b_sin = b * sin[i], b_cos = b * cos[i], a_sin = a * sin[i];
                y[2 * i] = a_cos - b_sin;
                y[2 * i + 1] = b_cos + a_sin;
            }
        } else {
            for (int64_t i = 0; i < count; i += kPanel) half(x + i, cos + i, sin + i, count, count - i, y + i);
        }
        for (int64_t i = 2 * count; i < dim; ++i) y[i] = x[i];
    }

private:
    // Up to 16 pairs (x[i], x[i + distance]).
    static void half(const float* x, const float* cos, const float* sin, int64_t distance, int64_t left, float* y) {
        const Vec16 a = load_some<Vec16>(x, left, 0.0f), b = load_some<Vec16>(x + distance, left, 0.0f);
        const Vec16 c = load_some<Vec16>(cos, left, 0.0f), s = load_some<Vec16>(sin, left, 0.0f);
        store_some(sub(mul(a, c), mul(b, s)), y, left);
        store_some(add(mul(b, c), mul(a, s)), y + distance, left);
    }
};

}  // namespace vivace
