// Sixteen floats in two AVX2 registers. Every operation rounds like its scalar twin, so all sets agree bit for bit.
#pragma once

#include <immintrin.h>

#include "../table.h"

namespace vivace::avx2 {

struct Vec16 {
    static constexpr int kTileRows = 2;  // 2 rows x 3 panels x 2 registers = 12 sums of the 16 registers

    __m256 lo, hi;

    static Vec16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
    static Vec16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
    static Vec16 all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
    static Vec16 load_f16(const uint16_t* p) {
        const auto* halves = reinterpret_cast<const __m128i*>(p);
        return {_mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1))};
    }
    static Vec16 load_bf16(const uint16_t* p) { return {widened_bf16(p), widened_bf16(p + 8)}; }
    static __m256 widened_bf16(const uint16_t* p) {
        const __m256i halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        return _mm256_castsi256_ps(_mm256_slli_epi32(halves, 16));
    }
    static Vec16 load_i8(const int8_t* p) { return {widened_i8(p), widened_i8(p + 8)}; }
    static __m256 widened_i8(const int8_t* p) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
    }
    void store(float* p) const {
        _mm256_storeu_ps(p, lo);
        _mm256_storeu_ps(p + 8, hi);
    }
};

// a * b + c, rounded once.
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline Vec16 add(Vec16 a, Vec16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline Vec16 sub(Vec16 a, Vec16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline Vec16 mul(Vec16 a, Vec16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline Vec16 div(Vec16 a, Vec16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }

// a > b ? a : b, and its twin: b where either is NaN.
inline Vec16 max(Vec16 a, Vec16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Vec16 min(Vec16 a, Vec16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }

inline Vec16 abs(Vec16 a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

// The size of a with the sign of b, for a >= 0.
inline Vec16 with_sign(Vec16 a, Vec16 b) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(a.lo, _mm256_and_ps(sign, b.lo)), _mm256_or_ps(a.hi, _mm256_and_ps(sign, b.hi))};
}

inline __m256 scale2_half(__m256 a, __m256 n_rounded) {
    // Two factors, because 2^n itself may be no normal number; the first product is exact, the second rounds.
    const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(n_rounded), _mm256_castps_si256(_mm256_set1_ps(kRounder)));
    const __m256i half = _mm256_srai_epi32(n, 1), bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

// a * 2^n, rounded once, for n given as the float n + kRounder with |n| < 200.
inline Vec16 scale2(Vec16 a, Vec16 n_rounded) {
    return {scale2_half(a.lo, n_rounded.lo), scale2_half(a.hi, n_rounded.hi)};
}

}  // namespace vivace::avx2
