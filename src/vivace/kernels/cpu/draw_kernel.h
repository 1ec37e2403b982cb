// The passes over a whole vocabulary that a draw takes, written once over a Vec16: largest scores and sums of weights.
#pragma once

#include "draw.h"
#include "math16.h"

namespace vivace {

template <class Vec16>
struct DrawKernel {
    // The largest of up to kDrawBlock floats; a NaN counts as nothing.
    static float largest(const float* x, int64_t count) {
        Vec16 most = Vec16::all(kNothing);
        for (int64_t i = 0; i < count; i += kPanel) most = max(load_some<Vec16>(x + i, count - i, kNothing), most);
        alignas(64) float lanes[kPanel];
        most.store(lanes);
        for (int i = 1; i < kPanel; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
        return lanes[0];
    }

    // weights[i] = e^(s_i - top) for the scaled scores s_i >= least, else 0: kDrawBlock of them, zero past the end. Returns
    // their sum, in an order that no instruction set changes.
    static double weigh(const float* x, int64_t count, const DrawScale& scale, double* weights) {
        alignas(64) float scores[kDrawBlock];
        const Vec16 shift = Vec16::all(scale.shift), divisor = Vec16::all(scale.divisor);
        for (int64_t i = 0; i < kDrawBlock; i += kPanel) {
            const Vec16 v = i < count ? load_some<Vec16>(x + i, count - i, kNothing) : Vec16::all(kNothing);
            (scale.is_scaled ? div(sub(v, shift), divisor) : v).store(scores + i);
        }
        for (int64_t i = 0; i < kDrawBlock; ++i) {
            const double weight = exp_below_zero(static_cast<double>(scores[i]) - scale.top);
            weights[i] = scores[i] >= scale.least ? weight : 0.0;
        }
        double sums[kLanes] = {};
        for (int64_t i = 0; i < kDrawBlock; i += kLanes)
            for (int lane = 0; lane < kLanes; ++lane) sums[lane] += weights[i + lane];
        for (int half = kLanes / 2; half > 0; half /= 2)
            for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
        return sums[0];
    }

private:
    static constexpr int kLanes = 8;
    static constexpr float kNothing = -__builtin_inff();

    // e^x for x <= 0 within two units in the last place, in plain steps that compilers make vectors of. Below -700 it is
    // that of -700, which no sum notices.
    static double exp_below_zero(double x) {
        constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves the whole number in the low bits
        x = x > -700.0 ? x : -700.0;
        const double shifted = x * 1.4426950408889634 + kRound, n = shifted - kRound;
        const double r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
        double p = 1.0 / 6227020800.0;  // 1 / 13!
        p = p * r + 1.0 / 479001600.0;
        p = p * r + 1.0 / 39916800.0;
        p = p * r + 1.0 / 3628800.0;
        p = p * r + 1.0 / 362880.0;
        p = p * r + 1.0 / 40320.0;
        p = p * r + 1.0 / 5040.0;
        p = p * r + 1.0 / 720.0;
        p = p * r + 1.0 / 120.0;
        p = p * r + 1.0 / 24.0;
        p = p * r + 1.0 / 6.0;
        p = p * r + 0.5;
        p = p * r + 1.0;
        p = p * r + 1.0;
        uint64_t whole, bits;
        __builtin_memcpy(&whole, &shifted, sizeof whole);
        __builtin_memcpy(&bits, &p, sizeof bits);
        bits += whole << 52;
        __builtin_memcpy(&p, &bits, sizeof p);
        return p;
    }
};

}  // namespace vivace
