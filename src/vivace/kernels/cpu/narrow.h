// float32 to the formats of stores, rounded to the nearest, ties to even; and back, exactly.
#pragma once

#include <cstdint>
#include <cstring>

#include "table.h"

namespace vivace {

inline float from_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline uint32_t to_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float from_bf16(uint16_t half) { return from_bits(static_cast<uint32_t>(half) << 16); }

inline float from_f16(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, rest = half & 0x7fffu;
    if (rest >= 0x7c00u) return from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);  // infinity or NaN
    // The exponent bias differs by 112; subnormal halves come out right because the product is exact.
    return from_bits(sign | 0x3f800000u) * (from_bits(rest << 13) * from_bits((127u + 112u) << 23));
}

inline uint16_t to_bf16(float x) {
    const uint32_t bits = to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;  // NaN
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline uint16_t to_f16(float x) {
    const uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);   // NaN
    if (size >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds to 65536 or more: infinity
    if (size < 0x38800000u) {
        // Below 2^-14 halves are multiples of 2^-24: adding 0.5 rounds to them and leaves their number in the low bits.
        return static_cast<uint16_t>(sign | (to_bits(from_bits(size) + 0.5f) - to_bits(0.5f)));
    }
    return static_cast<uint16_t>(sign | ((size - (112u << 23) + 0xfffu + (size >> 13 & 1u)) >> 13));
}

inline int64_t bytes_of(Format format) {
    switch (format) {
        case Format::kF32: return 4;
        case Format::kI8: return 1;
        default: return 2;
    }
}

// x becomes codes of -127 .. 127, at every `step`-th place; returns the scale: x is about codes * scale. The scale is the
// largest |x| / 127, codes are x * (127 / largest |x|) rounded to the nearest, ties to even. A vector whose scale would be
// smaller than any normal number becomes zeros; one that holds a NaN or infinity becomes NaN.
inline float to_i8(const float* x, int64_t count, int8_t* codes, int64_t step) {
    int32_t most = 0;  // bits of sizes are ordered like the sizes, with NaN above infinity
    for (int64_t i = 0; i < count; ++i) {
        const auto size = static_cast<int32_t>(to_bits(x[i]) & 0x7fffffffu);
        most = size > most ? size : most;
    }
    const bool is_finite = most < 0x7f800000;
    const float largest = from_bits(static_cast<uint32_t>(most)), scale = largest / 127.0f;
    if (!is_finite || scale < 0x1p-126f) {
        for (int64_t i = 0; i < count; ++i) codes[i * step] = 0;
        return is_finite ? 0.0f : from_bits(0x7fc00000u);
    }
    const float inverse = 127.0f / largest;
    for (int64_t i = 0; i < count; ++i) codes[i * step] = static_cast<int8_t>(to_bits(x[i] * inverse + kRounder) & 0xffu);
    return scale;
}

// Elements offset .. offset + count of a store, as float32.
inline void widen(const void* store, int64_t offset, int64_t count, Format format, float* x) {
    const auto* halves = static_cast<const uint16_t*>(store) + offset;
    switch (format) {
        case Format::kF32: std::memcpy(x, static_cast<const float*>(store) + offset, sizeof(float) * count); break;
        case Format::kBf16: for (int64_t i = 0; i < count; ++i) x[i] = from_bf16(halves[i]); break;
        case Format::kF16: for (int64_t i = 0; i < count; ++i) x[i] = from_f16(halves[i]); break;
        case Format::kI8: break;  // needs a scale
    }
}

// The inverse: x becomes the elements offset .. offset + count of a store.
inline void narrow(const float* x, int64_t count, Format format, void* store, int64_t offset) {
    auto* halves = static_cast<uint16_t*>(store) + offset;
    switch (format) {
        case Format::kF32: std::memcpy(static_cast<float*>(store) + offset, x, sizeof(float) * count); break;
        case Format::kBf16: for (int64_t i = 0; i < count; ++i) halves[i] = to_bf16(x[i]); break;
        case Format::kF16: for (int64_t i = 0; i < count; ++i) halves[i] = to_f16(x[i]); break;
        case Format::kI8: break;  // to_i8 gives a scale as well
    }
}

}  // namespace vivace
