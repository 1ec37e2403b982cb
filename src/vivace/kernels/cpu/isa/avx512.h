// Sixteen floats in one AVX-512 register. Every operation rounds like its scalar twin, so all sets agree bit for bit.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "../table.h"

namespace vivace::avx512 {

struct Vec16 {
    static constexpr int kTileRows = 8;  // 8 rows x 3 panels = 24 sums of the 32 registers

    __m512 v;

    static Vec16 zero() { return {_mm512_setzero_ps()}; }
    static Vec16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
    static Vec16 all(float x) { return {_mm512_set1_ps(x)}; }
    static Vec16 load_f16(const uint16_t* p) {
        return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
    }
    static Vec16 load_bf16(const uint16_t* p) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
    }
    static Vec16 load_i8(const int8_t* p) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
    }
    void store(float* p) const { _mm512_storeu_ps(p, v); }
};

// a * b + c, rounded once.
inline Vec16 fma(Vec16 a, Vec16 b, Vec16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Vec16 add(Vec16 a, Vec16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec16 sub(Vec16 a, Vec16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec16 mul(Vec16 a, Vec16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec16 div(Vec16 a, Vec16 b) { return {_mm512_div_ps(a.v, b.v)}; }

// a > b ? a : b, and its twin: b where either is NaN.
inline Vec16 max(Vec16 a, Vec16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec16 min(Vec16 a, Vec16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Vec16 abs(Vec16 a) { return {_mm512_abs_ps(a.v)}; }

// The size of a with the sign of b, for a >= 0.
inline Vec16 with_sign(Vec16 a, Vec16 b) {
    const __m512i sign = _mm512_and_epi32(_mm512_castps_si512(b.v), _mm512_set1_epi32(INT32_MIN));
    return {_mm512_castsi512_ps(_mm512_or_epi32(_mm512_castps_si512(a.v), sign))};
}

// a * 2^n, rounded once, for n given as the float n + kRounder with |n| < 200.
inline Vec16 scale2(Vec16 a, Vec16 n_rounded) {
    return {_mm512_scalef_ps(a.v, _mm512_sub_ps(n_rounded.v, _mm512_set1_ps(kRounder)))};
}

}  // namespace vivace::avx512
