// Sixteen floats in two AVX2 registers. Every operation rounds like its scalar twin, so all sets agree bit for bit.
#pragma once

#include <immintrin.h>

namespace vivace::avx2 {

struct Vec16 {
    static constexpr int kTileRows = 2;  // 2 rows x 3 panels x 2 registers = 12 sums of the 16 registers

    __m256 lo, hi;

    static Vec16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Vec16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static Vec16 all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    void store(float* p) const {
        _mm256_storeu_ps(p, lo);
        _mm256_storeu_ps(p + 8, hi);
    }
};

// a * b + c, rounded once.
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec16 mul(Vec16 a, Vec16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }

}  // namespace vivace::avx2
