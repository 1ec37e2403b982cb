// Sixteen 32-bit integers, or 64 bytes, in one AVX-512 register, and the ways to multiply bytes.
#pragma once

#include "../quant.h"
#include "avx512.h"

namespace vivace::avx512 {

struct Ints {
    __m512i v;

    static Ints load(const void* p) { return {_mm512_loadu_si512(p)}; }
    static Ints all(int32_t x) { return {_mm512_set1_epi32(x)}; }
    static Ints all_bytes(int x) { return {_mm512_set1_epi8(static_cast<char>(x))}; }
    // The four bytes at p, sixteen times.
    static Ints all_of(const int8_t* p) {
        int32_t four;
        __builtin_memcpy(&four, p, sizeof four);
        return all(four);
    }
    // The 16 bytes at p, four times.
    static Ints four_times(const uint8_t* p) {
        return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    static Ints load_int8(const int8_t* p) {
        return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
    }
    static Ints bits_of(Vec16 x) { return {_mm512_castps_si512(x.v)}; }
    // The largest of the bits of |a| and |b|.
    static uint32_t largest_size(Vec16 a, Vec16 b) {
        const __m512i size = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a.v)), _mm512_castps_si512(_mm512_abs_ps(b.v)));
        return static_cast<uint32_t>(_mm512_reduce_max_epi32(size));
    }

    void store(void* p) const { _mm512_storeu_si512(p, v); }
    // The lowest byte of each lane.
    void store_bytes(int8_t* p) const { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(v)); }
    int32_t sum() const { return _mm512_reduce_add_epi32(v); }
    Vec16 floats() const { return {_mm512_cvtepi32_ps(v)}; }
};

inline Ints add(Ints a, Ints b) { return {_mm512_add_epi32(a.v, b.v)}; }
inline Ints sub(Ints a, Ints b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline Ints bit_and(Ints a, Ints b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Ints bit_or(Ints a, Ints b) { return {_mm512_or_si512(a.v, b.v)}; }

inline Ints shift_left(Ints a, int bits) {
    return {_mm512_slli_epi32(a.v, bits)};
}
inline Ints shift_right(Ints a, int bits) {
    return {_mm512_srai_epi32(a.v, bits)};
}

// Pairs of bytes as 16-bit numbers, shifted.
inline Ints shift16_left(Ints a, int bits) { return {_mm512_sll_epi16(a.v, _mm_cvtsi32_si128(bits))}; }
inline Ints shift16_right(Ints a, int bits) { return {_mm512_srl_epi16(a.v, _mm_cvtsi32_si128(bits))}; }

// table[index] of each byte, for indices below 16.
inline Ints look_up(Ints table, Ints index) { return {_mm512_shuffle_epi8(table.v, index.v)}; }

// sum + four products of an unsigned and a signed byte in each lane, with the instruction made for it.
#if defined(__AVX512VNNI__)
struct VnniDots {
    static constexpr bool kTakesAnyCode = true;
    static constexpr int kTileRows = 4;  // 4 rows x 3 panels: 12 integer and 12 float sums of the 32 registers
    static constexpr int kDirectRows = 4;  // most rows whose codes are not unpacked first

    template <bool>
    static Ints add(Ints sum, Ints codes, Ints four) {
        return {_mm512_dpbusd_epi32(sum.v, codes.v, four.v)};
    }
};
#endif

// The same in steps of 16 bits: two products fit them only when codes are small, else even and odd bytes go apart.
struct MaddDots {
    static constexpr bool kTakesAnyCode = false;
    static constexpr int kTileRows = 4;
    static constexpr int kDirectRows = 4;

    template <bool kIsSmall>
    static Ints add(Ints sum, Ints codes, Ints four) {
        if (kIsSmall) {
            const __m512i pairs = _mm512_maddubs_epi16(codes.v, four.v);
            return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
        }
        const __m512i even = _mm512_madd_epi16(_mm512_and_si512(codes.v, _mm512_set1_epi16(255)),
                                               _mm512_srai_epi16(_mm512_slli_epi16(four.v, 8), 8));
        const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(codes.v, 8), _mm512_srai_epi16(four.v, 8));
        return {_mm512_add_epi32(sum.v, _mm512_add_epi32(even, odd))};
    }
};

}  // namespace vivace::avx512
