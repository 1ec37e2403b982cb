// Elementary functions of sixteen floats. Each is a fixed chain of correctly rounded steps: the same bits on every
// instruction set, in every lane, at every place of an array. Coefficients: tools/fit_math16.py.
//
// This file and the kernels are compiled once per instruction set. They use nothing from the standard library's
// templates: an inline function of theirs compiled for AVX-512 could be the copy that the linker keeps for everybody.
#pragma once

#include "table.h"

namespace vivace {

// 2^n * (1 + q) = e^x with n whole and |x - n ln 2| <= ln 2 / 2. n_rounded is n + kRounder.
template <class Vec16>
struct ExpParts {
    Vec16 n_rounded;
    Vec16 q;
};

template <class Vec16>
inline ExpParts<Vec16> exp_parts(Vec16 x) {
    const Vec16 n_rounded = fma(x, Vec16::all(1.44269504f), Vec16::all(kRounder));
    const Vec16 n = sub(n_rounded, Vec16::all(kRounder));
    // ln 2 in two parts, the first with so few bits that n times it is exact.
    const Vec16 r = fma(n, Vec16::all(-1.42860677e-6f), fma(n, Vec16::all(-0.693145752f), x));
    // q = r + r^2 (c0 + c1 r + ...): relative error of 1 + q at most 4e-9 before rounding.
    Vec16 p = Vec16::all(0.00139517197f);
    p = fma(p, r, Vec16::all(0.00836959854f));
    p = fma(p, r, Vec16::all(0.0416661873f));
    p = fma(p, r, Vec16::all(0.166665122f));
    p = fma(p, r, Vec16::all(0.5f));
    return {n_rounded, fma(mul(r, r), p, r)};
}

// e^x; zero below -104, infinity above 89.
template <class Vec16>
inline Vec16 exp(Vec16 x) {
    const auto parts = exp_parts(min(Vec16::all(90.0f), max(Vec16::all(-105.0f), x)));
    return scale2(add(Vec16::all(1.0f), parts.q), parts.n_rounded);
}

// tanh x = e / (e + 2) with e = e^(2|x|) - 1, and the sign of x.
template <class Vec16>
inline Vec16 tanh(Vec16 x) {
    const Vec16 one = Vec16::all(1.0f);
    const auto parts = exp_parts(min(Vec16::all(40.0f), abs(add(x, x))));  // above 40 the quotient is 1
    const Vec16 power = scale2(one, parts.n_rounded);
    const Vec16 e = fma(power, parts.q, sub(power, one));
    return with_sign(div(e, add(e, Vec16::all(2.0f))), x);
}

// erfc z = e^(-z g(z)) for 0 <= z <= 5, where g is a polynomial: relative error at most 1e-7 near zero, 2e-6 at 5.
template <class Vec16>
inline Vec16 erfc_positive(Vec16 z) {
    Vec16 g = Vec16::all(-8.54351534e-10f);
    g = fma(g, z, Vec16::all(3.39491280e-8f));
    g = fma(g, z, Vec16::all(-6.15144018e-7f));
    g = fma(g, z, Vec16::all(6.72484612e-6f));
    g = fma(g, z, Vec16::all(-4.93304506e-5f));
    g = fma(g, z, Vec16::all(0.000253724662f));
    g = fma(g, z, Vec16::all(-0.000909763214f));
    g = fma(g, z, Vec16::all(0.00201329216f));
    g = fma(g, z, Vec16::all(-0.000426239014f));
    g = fma(g, z, Vec16::all(-0.0190311261f));
    g = fma(g, z, Vec16::all(0.102746464f));
    g = fma(g, z, Vec16::all(0.636623323f));
    g = fma(g, z, Vec16::all(1.12837899f));
    return exp(mul(mul(z, g), Vec16::all(-1.0f)));
}

// The lanes added in one fixed tree.
template <class Vec16>
inline float lane_sum(Vec16 v) {
    alignas(64) float lanes[kPanel];
    v.store(lanes);
    for (int half = kPanel / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
}

// The first `count` (at most 16) floats at p, and `fill` in the other lanes.
template <class Vec16>
inline Vec16 load_some(const float* p, int64_t count, float fill) {
    if (count >= kPanel) return Vec16::load(p);
    alignas(64) float lanes[kPanel];
    for (int i = 0; i < kPanel; ++i) lanes[i] = i < count ? p[i] : fill;
    return Vec16::load(lanes);
}

template <class Vec16>
inline void store_some(Vec16 v, float* p, int64_t count) {
    if (count >= kPanel) return v.store(p);
    alignas(64) float lanes[kPanel];
    v.store(lanes);
    for (int i = 0; i < count; ++i) p[i] = lanes[i];
}

}  // namespace vivace
