// Weights of some groups of a block, from their packed form to what the dot products read, written once over a Vec16 and
// its Ints: codes as bytes, from the block itself or from a buffer [groups][8 steps][panels][64], scales and minima as
// floats [groups][halves][panels][16].
#pragma once

#include "math16.h"
#include "quant.h"

namespace vivace {

// The code bytes of one step and panel of a packed group. `step` is known to the compiler where loops are unrolled.
template <class Ints, int Panels, int Bits, bool HasTable>
struct PackedCodes {
    static constexpr int64_t kGroupBytes = Bits * Panels * kVector;

    Ints table;

    explicit PackedCodes(const QuantLayout& layout) : table(Ints::four_times(layout.table)) {}

    inline Ints at(const uint8_t* group, int step, int panel) const {
        const uint8_t* codes = group + panel * kVector;
        if (Bits == 8) return Ints::load(codes + step * Panels * kVector);
        if (Bits < 4) {
            const Ints four = Ints::load(codes + step / 4 * Panels * kVector);
            const Ints low = bit_and(shift16_right(four, step % 4 * 2), Ints::all_bytes(3));
            return Bits == 2 ? low : bit_or(low, high(codes + 2 * Panels * kVector, step));
        }
        const Ints both = Ints::load(codes + step % 4 * Panels * kVector);
        const Ints low = bit_and(step < 4 ? both : shift16_right(both, 4), Ints::all_bytes(15));
        if (HasTable) return look_up(table, low);
        return Bits == 4 ? low : bit_or(low, high(codes + 4 * Panels * kVector, step));
    }

private:
    static constexpr int kLow = Bits < 4 ? 2 : 4;                           // bits that stand in the first vectors
    static constexpr int kWidth = Bits > kLow && Bits < 8 ? Bits - kLow : 1;  // bits that stand in the others

    // The bits of a step above the lowest kLow, in their place.
    static inline Ints high(const uint8_t* planes, int step) {
        constexpr int kPlaneSteps = kSteps / kWidth;
        const Ints plane = Ints::load(planes + step / kPlaneSteps * Panels * kVector);
        const int place = step % kPlaneSteps * kWidth;
        const Ints moved = place < kLow ? shift16_left(plane, kLow - place) : shift16_right(plane, place - kLow);
        return bit_and(moved, Ints::all_bytes(((1 << kWidth) - 1) << kLow));
    }
};

// The same of a group that was unpacked.
template <class Ints, int Panels>
struct PlainCodes {
    static constexpr int64_t kGroupBytes = kSteps * Panels * kVector;

    inline Ints at(const uint8_t* group, int step, int panel) const {
        return Ints::load(group + (step * Panels + panel) * kVector);
    }
};

template <class Vec16, class Ints, int Panels>
struct Unpacker {
    template <int Bits, bool HasTable>
    static void codes(const QuantLayout& layout, const uint8_t* packed, int64_t count, uint8_t* out) {
        using Packed = PackedCodes<Ints, Panels, Bits, HasTable>;
        const Packed from(layout);
        for (int64_t g = 0; g < count; ++g, packed += Packed::kGroupBytes, out += kSteps * Panels * kVector) {
#pragma GCC unroll 8
            for (int step = 0; step < kSteps; ++step)
                for (int p = 0; p < Panels; ++p) from.at(packed, step, p).store(out + (step * Panels + p) * kVector);
        }
    }

    static void scales(const QuantLayout& layout, const uint8_t* block, int64_t groups, int64_t begin, int64_t count,
                       float* scales, float* minima) {
        layout.has_minimum ? scales_of<true>(layout, block, groups, begin, count, scales, minima)
                           : scales_of<false>(layout, block, groups, begin, count, scales, minima);
    }

private:
    template <bool HasMinimum>
    static void scales_of(const QuantLayout& layout, const uint8_t* block, int64_t groups, int64_t begin, int64_t count,
                          float* scales, float* minima) {
        const int halves = kGroup / layout.group;
        const int64_t coarse_bytes = Panels * layout.coarse_bytes(), fine_bytes = Panels * layout.fine_bytes();
        const uint8_t* coarse = block + Panels * layout.coarse_offset(groups);
        const uint8_t* fine = block + Panels * layout.fine_offset(groups);
        for (int64_t g = begin; g < begin + count; ++g) {
            const uint8_t* g_coarse = coarse + (layout.span == kGroup ? g : g * kGroup / layout.span) * coarse_bytes;
            for (int h = 0; h < halves; ++h) {
                const uint8_t* g_fine = fine + (g * halves + h) * fine_bytes;
                for (int i = 0; i < (HasMinimum ? 2 : 1) * Panels; ++i) {
                    Vec16 value = layout.is_f32 ? Vec16::load(reinterpret_cast<const float*>(g_coarse) + i * 16)
                                                : Vec16::load_f16(reinterpret_cast<const uint16_t*>(g_coarse) + i * 16);
                    if (layout.has_fine) {
                        value = mul(value, Ints::load_int8(reinterpret_cast<const int8_t*>(g_fine) + i * 16).floats());
                    }
                    value.store(i < Panels ? scales + i * 16 : minima + (i - Panels) * 16);
                }
                scales += Panels * 16;
                minima += Panels * 16;
            }
        }
    }
};

}  // namespace vivace
