// Activations become integers, one scale for 32 inputs of a row, written once over a Vec16 and its Ints.
//
// One plane: code = round(127 x / amax). Two planes: code = round(8191 x / amax), split into high = code >> 6, signed,
// and low = code & 63: fourteen bits. The error of a code is at most half a level, amax / 16382. A row's codes depend on
// nothing but the row, so they are the same in any batch. A group with NaN or infinity gets a NaN scale, which makes
// its row NaN and touches no other. Groups with amax < 2^-100 count as zero: their quotient could overflow.
#pragma once

#include "math16.h"
#include "quant.h"

namespace vivace {

template <class Vec16, class Ints>
struct ActivationQuantizer {
    static void tile(const ActivationTile& t) {
        uint8_t* out = t.tile;
        for (int64_t g = 0; g < t.groups; ++g, out += activation_bytes(t.planes)) {
            auto* head = reinterpret_cast<ActivationGroup*>(out);
            auto* codes = reinterpret_cast<int8_t*>(out + sizeof(ActivationGroup));
            for (int r = 0; r < t.rows; ++r) {
                group(t.x + (r * t.groups + g) * kGroup, t.planes, r, head, codes + r * kGroup);
            }
        }
    }

private:
    static constexpr uint32_t kSmallest = 27u << 23;   // bits of 2^-100
    static constexpr uint32_t kInfinity = 255u << 23;  // and of infinity; NaN is above

    static void group(const float* x, int planes, int row, ActivationGroup* head, int8_t* codes) {
        const Vec16 first = Vec16::load(x), second = Vec16::load(x + 16);
        const uint32_t size_bits = Ints::largest_size(first, second);
        const float levels = planes == 1 ? 127.0f : 8191.0f;
        float scale = 0.0f, inverse = 0.0f;
        if (size_bits >= kInfinity) {
            scale = __builtin_nanf("");
        } else if (size_bits >= kSmallest) {
            float size;
            __builtin_memcpy(&size, &size_bits, sizeof size);
            scale = size / levels;
            inverse = levels / size;
        }
        const int32_t a = half(first, inverse, planes, codes);
        const int32_t b = half(second, inverse, planes, codes + 16);
        head->scale[row] = scale;
        const int32_t sums[3] = {a + b, a, b};
        for (int i = 0; i < 3; ++i) {
            head->sum[i][row] = scale * static_cast<float>(sums[i]);
            head->negative[i][row] = -128 * sums[i];
        }
    }

    // 16 codes; returns their sum. Without an inverse all are zero, whatever x is.
    static int32_t half(Vec16 x, float inverse, int planes, int8_t* codes) {
        const Vec16 rounder = Vec16::all(kRounder);
        const Vec16 rounded = inverse == 0.0f ? rounder : fma(x, Vec16::all(inverse), rounder);
        const Ints code = sub(Ints::bits_of(rounded), Ints::bits_of(rounder));
        if (planes == 1) {
            code.store_bytes(codes);
        } else {
            shift_right(code, 6).store_bytes(codes);
            bit_and(code, Ints::all(63)).store_bytes(codes + kTile * kGroup);
        }
        return code.sum();
    }
};

}  // namespace vivace
