// The scores of experts from their logits, for one row, written once over a Vec16.
#pragma once

#include "math16.h"

namespace vivace {

template <class Vec16>
struct RouteKernel {
    // y = sigmoid(x), or softmax(x): then a NaN or an infinity makes all of them NaN.
    static void scores(const float* x, int64_t count, bool is_sigmoid, float* y) {
        is_sigmoid ? sigmoid(x, count, y) : softmax(x, count, y);
    }

private:
    static void sigmoid(const float* x, int64_t count, float* y) {
        const Vec16 one = Vec16::all(1.0f), minus = Vec16::all(-1.0f);
        for (int64_t i = 0; i < count; i += kPanel) {
            const Vec16 power = exp(mul(load_some<Vec16>(x + i, count - i, 0.0f), minus));
            store_some(div(one, add(one, power)), y + i, count - i);
        }
    }

    static void softmax(const float* x, int64_t count, float* y) {
        constexpr float kNothing = -3.0e38f;  // its exponential is zero
        float largest = kNothing;
        for (int64_t i = 0; i < count; ++i) largest = x[i] > largest ? x[i] : largest;
        const Vec16 shift = Vec16::all(largest);
        Vec16 sums = Vec16::zero();
        for (int64_t i = 0; i < count; i += kPanel) {
            const Vec16 power = exp(sub(load_some<Vec16>(x + i, count - i, kNothing), shift));
            sums = add(sums, power);
            store_some(power, y + i, count - i);
        }
        const Vec16 total = Vec16::all(lane_sum(sums));
        for (int64_t i = 0; i < count; i += kPanel) {
            store_some(div(load_some<Vec16>(y + i, count - i, 0.0f), total), y + i, count - i);
        }
    }
};

}  // namespace vivace
