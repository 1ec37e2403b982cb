// Loops of byte dot products, one per way a processor may do them. Each function is compiled for its own instructions.
#include "ceilings.h"

#if defined(VIVACE_X86)
#include <immintrin.h>
#endif

namespace vivace {
namespace {

constexpr int kChains = 12;  // independent sums: at least latency times instructions per cycle of any current core

// What a loop did, given the number of bytes in a vector. Its sums take part, so that the compiler keeps the loop:
// they are multiples of 4, or wrapped around to such.
double operations(int64_t rounds, int bytes, int32_t sums) {
    return sums == 1 ? 0.0 : 2.0 * kChains * bytes * static_cast<double>(rounds);
}

#if defined(VIVACE_X86)

__attribute__((target("avx512f,avx512vnni"))) double dots_avx512_vnni(int64_t rounds) {
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i sum[kChains] = {};
    for (int i = 0; i < kChains; ++i) asm volatile("" : "+v"(sum[i]));  // chains that look alike would become one
    for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], ones, ones);
    for (int i = 1; i < kChains; ++i) sum[0] = _mm512_or_si512(sum[0], sum[i]);
    int32_t lanes[16];
    _mm512_storeu_si512(lanes, sum[0]);
    return operations(rounds, sizeof(__m512i), lanes[0]);
}

__attribute__((target("avx2,avxvnni"))) double dots_avx_vnni(int64_t rounds) {
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i sum[kChains] = {};
    for (int i = 0; i < kChains; ++i) asm volatile("" : "+x"(sum[i]));
    for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) sum[i] = _mm256_dpbusd_avx_epi32(sum[i], ones, ones);
    for (int i = 1; i < kChains; ++i) sum[0] = _mm256_or_si256(sum[0], sum[i]);
    return operations(rounds, sizeof(__m256i), _mm256_extract_epi32(sum[0], 0));
}

// Without a dot product: pairs of bytes to 16 bits, pairs of those to 32, and a sum. One factor changes every round,
// or the compiler would take the products out of the loop.
__attribute__((target("avx2"))) double dots_avx2(int64_t rounds) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[kChains] = {}, factor = _mm256_set1_epi8(4);
    for (int i = 0; i < kChains; ++i) asm volatile("" : "+x"(sum[i]));
    for (int64_t round = 0; round < rounds; ++round) {
        asm volatile("" : "+x"(factor));
#pragma GCC unroll 12
        for (int i = 0; i < kChains; ++i) {
            const __m256i pairs = _mm256_maddubs_epi16(_mm256_or_si256(factor, sum[i]), factor);
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, ones));
        }
    }
    for (int i = 1; i < kChains; ++i) sum[0] = _mm256_or_si256(sum[0], sum[i]);
    return operations(rounds, sizeof(__m256i), _mm256_extract_epi32(sum[0], 0));
}

#endif

double dots_portable(int64_t rounds) {
    int32_t sum[kChains] = {};
    for (int i = 0; i < kChains; ++i) asm volatile("" : "+r"(sum[i]));
    volatile int8_t factor = 4;  // read in every round, so that the sums cannot be worked out beforehand
    for (int64_t round = 0; round < rounds; ++round) {
        const int32_t product = factor * factor;
        for (int i = 0; i < kChains; ++i) sum[i] = (sum[i] + product) & 0xffff;
    }
    for (int i = 1; i < kChains; ++i) sum[0] |= sum[i];
    return operations(rounds, 1, sum[0]);
}

}  // namespace

ByteDots best_byte_dots() {
#if defined(VIVACE_X86)
    if (__builtin_cpu_supports("avx512vnni")) return {"vpdpbusd on 512 bits", &dots_avx512_vnni};
    if (__builtin_cpu_supports("avxvnni")) return {"vpdpbusd on 256 bits", &dots_avx_vnni};
    if (__builtin_cpu_supports("avx2")) return {"vpmaddubsw and vpmaddwd on 256 bits", &dots_avx2};
#endif
    return {"scalar", &dots_portable};
}

}  // namespace vivace
