// Cosine and sine of rotary angles: the same bits on every machine, because only +, - and * of doubles are used.
#pragma once

#include <cstdint>

namespace vivace {

// cos and sin of one angle in radians. The polynomials are Taylor's, off by at most 2e-13 within a quarter turn's half;
// taking quarter turns off costs less than that up to 2^20 quarter turns. So the rounded result is off by half a unit
// in the last place, but for the rarest ties.
inline void cos_sin(float angle, float* cos, float* sin) {
    constexpr double kRound = 6755399441055744.0;       // 1.5 * 2^52: adding it rounds to a whole number
    constexpr double kQuarter = 1.57079632673412561417;  // the first 33 bits of pi / 2: n times it is exact
    constexpr double kRest = 6.07710050650619224932e-11;
    const double x = angle, n = (x * 0.63661977236758134308 + kRound) - kRound;
    const double r = (x - n * kQuarter) - n * kRest, s = r * r;
    const double odd =
        r + r * s * (-1.0 / 6 + s * (1.0 / 120 + s * (-1.0 / 5040 + s * (1.0 / 362880 + s * (-1.0 / 39916800 +
        s * (1.0 / 6227020800))))));
    const double even =
        1.0 + s * (-0.5 + s * (1.0 / 24 + s * (-1.0 / 720 + s * (1.0 / 40320 + s * (-1.0 / 3628800 +
        s * (1.0 / 479001600 + s * (-1.0 / 87178291200)))))));
    const int64_t turn = static_cast<int64_t>(n) & 3;
    const double c = turn & 1 ? odd : even, d = turn & 1 ? even : odd;
    *cos = static_cast<float>(turn == 1 || turn == 2 ? -c : c);
    *sin = static_cast<float>(turn >= 2 ? -d : d);
}

}  // namespace vivace
