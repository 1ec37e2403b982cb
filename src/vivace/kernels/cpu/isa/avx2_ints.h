// Sixteen 32-bit integers, or 64 bytes, in two AVX2 registers, and the ways to multiply bytes.
#pragma once

#include "../quant.h"
#include "avx2.h"

namespace vivace::avx2 {

struct Ints {
    __m256i lo, hi;

    static Ints load(const void* p) {
        const auto* q = static_cast<const __m256i*>(p);
        return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
    }
    static Ints twice(__m256i x) { return {x, x}; }
    static Ints all(int32_t x) { return twice(_mm256_set1_epi32(x)); }
    static Ints all_bytes(int x) { return twice(_mm256_set1_epi8(static_cast<char>(x))); }
    // The four bytes at p, sixteen times.
    static Ints all_of(const int8_t* p) {
        int32_t four;
        __builtin_memcpy(&four, p, sizeof four);
        return all(four);
    }
    // The 16 bytes at p, four times.
    static Ints four_times(const uint8_t* p) {
        return twice(_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static Ints load_int8(const int8_t* p) {
        const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
    }
    static Ints bits_of(Vec16 x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
    // The largest of the bits of |a| and |b|.
    static uint32_t largest_size(Vec16 a, Vec16 b) {
        const Ints x = bits_of(abs(a)), y = bits_of(abs(b));
        const __m256i size = _mm256_max_epi32(_mm256_max_epi32(x.lo, x.hi), _mm256_max_epi32(y.lo, y.hi));
        __m128i most = _mm_max_epi32(_mm256_castsi256_si128(size), _mm256_extracti128_si256(size, 1));
        most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
        most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
        return static_cast<uint32_t>(_mm_cvtsi128_si32(most));
    }

    void store(void* p) const {
        auto* q = static_cast<__m256i*>(p);
        _mm256_storeu_si256(q, lo);
        _mm256_storeu_si256(q + 1, hi);
    }
    // The lowest byte of each lane.
    void store_bytes(int8_t* p) const {
        const __m256i pick = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                              -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1);
        const __m256i a = _mm256_shuffle_epi8(lo, pick), b = _mm256_shuffle_epi8(hi, pick);
        const __m128i low = _mm_or_si128(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
        const __m128i high = _mm_or_si128(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_unpacklo_epi64(low, high));
    }
    int32_t sum() const {
        const __m256i both = _mm256_add_epi32(lo, hi);
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1));
        return _mm_cvtsi128_si32(four);
    }
    Vec16 floats() const { return {_mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi)}; }
};

inline Ints add(Ints a, Ints b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
inline Ints sub(Ints a, Ints b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
inline Ints bit_and(Ints a, Ints b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
inline Ints bit_or(Ints a, Ints b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }

inline Ints shift_left(Ints a, int bits) {
    return {_mm256_slli_epi32(a.lo, bits), _mm256_slli_epi32(a.hi, bits)};
}
inline Ints shift_right(Ints a, int bits) {
    return {_mm256_srai_epi32(a.lo, bits), _mm256_srai_epi32(a.hi, bits)};
}

// Pairs of bytes as 16-bit numbers, shifted.
inline Ints shift16_left(Ints a, int bits) {
    const __m128i count = _mm_cvtsi32_si128(bits);
    return {_mm256_sll_epi16(a.lo, count), _mm256_sll_epi16(a.hi, count)};
}
inline Ints shift16_right(Ints a, int bits) {
    const __m128i count = _mm_cvtsi32_si128(bits);
    return {_mm256_srl_epi16(a.lo, count), _mm256_srl_epi16(a.hi, count)};
}

// table[index] of each byte, for indices below 16.
inline Ints look_up(Ints table, Ints index) {
    return {_mm256_shuffle_epi8(table.lo, index.lo), _mm256_shuffle_epi8(table.hi, index.hi)};
}

// sum + four products of an unsigned and a signed byte in each lane, with the instruction made for it.
#if defined(__AVXVNNI__)
struct VnniDots {
    static constexpr bool kTakesAnyCode = true;
    static constexpr int kTileRows = 2;  // 2 rows x 3 panels x 2 registers = 12 integer sums of the 16 registers
    static constexpr int kDirectRows = 2;  // most rows whose codes are not unpacked first

    template <bool>
    static Ints add(Ints sum, Ints codes, Ints four) {
        return {_mm256_dpbusd_avx_epi32(sum.lo, codes.lo, four.lo), _mm256_dpbusd_avx_epi32(sum.hi, codes.hi, four.hi)};
    }
};
#endif

// The same in steps of 16 bits: two products fit them only when codes are small, else even and odd bytes go apart.
struct MaddDots {
    static constexpr bool kTakesAnyCode = false;
    static constexpr int kTileRows = 2;
    static constexpr int kDirectRows = 2;

    template <bool kIsSmall>
    static Ints add(Ints sum, Ints codes, Ints four) {
        return {one<kIsSmall>(sum.lo, codes.lo, four.lo), one<kIsSmall>(sum.hi, codes.hi, four.hi)};
    }

private:
    template <bool kIsSmall>
    static __m256i one(__m256i sum, __m256i codes, __m256i four) {
        if (kIsSmall) {
            const __m256i pairs = _mm256_maddubs_epi16(codes, four);
            return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
        }
        const __m256i even = _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)),
                                               _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8));
        const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), _mm256_srai_epi16(four, 8));
        return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
    }
};

}  // namespace vivace::avx2
