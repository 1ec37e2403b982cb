// Sixteen floats in standard C++, for any processor. Slow where fma is not an instruction, but equal bit for bit.
#pragma once

#include <math.h>

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
    void store(float* p) const {
        for (int i = 0; i < 16; ++i) p[i] = v[i];
    }
};

// a * b + c, rounded once.
inline Vec16 fma(const Vec16& a, const Vec16& b, const Vec16& c) {
    Vec16 r;
    for (int i = 0; i < 16; ++i) r.v[i] = ::fmaf(a.v[i], b.v[i], c.v[i]);
    return r;
}
inline Vec16 mul(const Vec16& a, const Vec16& b) {
    Vec16 r;
    for (int i = 0; i < 16; ++i) r.v[i] = a.v[i] * b.v[i];
    return r;
}

}  // namespace vivace::portable
