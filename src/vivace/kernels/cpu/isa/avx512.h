// Sixteen floats in one AVX-512 register. Every operation rounds like its scalar twin, so all sets agree bit for bit.
#pragma once

#include <immintrin.h>

namespace vivace::avx512 {

struct Vec16 {
    static constexpr int kTileRows = 8;  // 8 rows x 3 panels = 24 sums of the 32 registers

    __m512 v;

    static Vec16 zero() { return {_mm512_setzero_ps()}; }
    static Vec16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static Vec16 all(float x) { return {_mm512_set1_ps(x)}; }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
};

// a * b + c, rounded once.
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec16 mul(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }

}  // namespace vivace::avx512
