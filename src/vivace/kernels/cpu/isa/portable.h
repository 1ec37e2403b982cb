// Sixteen floats in standard C++, for any processor. Slow where fma is not an instruction, but equal bit for bit.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../narrow.h"
#include "../table.h"

namespace vivace::portable {

struct Vec16 {
    static constexpr int kTileRows = 2;

    float v[16];

    static Vec16 zero() { return all(0.0f); }
    static Vec16 load(const float* p) {
        Vec16 r;
        for (int i = 0; i < 16; ++i) r.v[i] = p[i];
        return r;
    }
    static Vec16 all(float x) {
        Vec16 r;
        for (int i = 0; i < 16; ++i) r.v[i] = x;
        return r;
    }
    static Vec16 load_f16(const uint16_t* p) {
        Vec16 r;
        for (int i = 0; i < 16; ++i) r.v[i] = from_f16(p[i]);
        return r;
    }
    static Vec16 load_bf16(const uint16_t* p) {
        Vec16 r;
        for (int i = 0; i < 16; ++i) r.v[i] = from_bf16(p[i]);
        return r;
    }
    static Vec16 load_i8(const int8_t* p) {
        Vec16 r;
        for (int i = 0; i < 16; ++i) r.v[i] = static_cast<float>(p[i]);
        return r;
    }
    void store(float* p) const {
        for (int i = 0; i < 16; ++i) p[i] = v[i];
    }
};

// f applied lane by lane.
template <class F>
inline Vec16 lanes(F f) {
    Vec16 r;
    for (int i = 0; i < 16; ++i) r.v[i] = f(i);
    return r;
}

// a * b + c, rounded once.
inline Vec16 fma(const Vec16& a, const Vec16& b, const Vec16& c) {
    return lanes([&](int i) { return ::fmaf(a.v[i], b.v[i], c.v[i]); });
}
inline Vec16 add(const Vec16& a, const Vec16& b) {
    return lanes([&](int i) { return a.v[i] + b.v[i]; });
}
inline Vec16 sub(const Vec16& a, const Vec16& b) {
    return lanes([&](int i) { return a.v[i] - b.v[i]; });
}
inline Vec16 mul(const Vec16& a, const Vec16& b) {
    return lanes([&](int i) { return a.v[i] * b.v[i]; });
}
inline Vec16 div(const Vec16& a, const Vec16& b) {
    return lanes([&](int i) { return a.v[i] / b.v[i]; });
}

// a > b ? a : b, and its twin: b where either is NaN.
inline Vec16 max(const Vec16& a, const Vec16& b) {
    return lanes([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec16 min(const Vec16& a, const Vec16& b) {
    return lanes([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
inline Vec16 abs(const Vec16& a) {
    return lanes([&](int i) { return ::fabsf(a.v[i]); });
}

// The size of a with the sign of b, for a >= 0.
inline Vec16 with_sign(const Vec16& a, const Vec16& b) {
    return lanes([&](int i) { return ::copysignf(a.v[i], b.v[i]); });
}

inline uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// 2^n for a normal result; any n is safe.
inline float power_of_two(int32_t n) {
    const uint32_t bits = (static_cast<uint32_t>(n) + 127u) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// a * 2^n, rounded once, for n given as the float n + kRounder with |n| < 200.
inline Vec16 scale2(const Vec16& a, const Vec16& n_rounded) {
    return lanes([&](int i) {
        // Two factors, because 2^n itself may be no normal number; the first product is exact, the second rounds.
        const int32_t n = static_cast<int32_t>(bits_of(n_rounded.v[i]) - bits_of(kRounder));
        const int32_t half = n >> 1;
        return a.v[i] * power_of_two(half) * power_of_two(n - half);
    });
}

}  // namespace vivace::portable
