// Weights of some groups of a block, from their packed form to what the dot products read, written once over a Vec16 and
// its Ints: codes as bytes [groups][8 steps][panels][64], scales and minima as floats [groups][halves][panels][16].
#pragma once

#include "math16.h"
#include "quant.h"

namespace vivace {

template <class Vec16, class Ints, int Panels>
struct Unpacker {
    static constexpr int64_t kStepBytes = Panels * kVector;

    static void codes(const QuantLayout& layout, const uint8_t* packed, int64_t count, uint8_t* out) {
        layout.has_table ? codes_of<true>(layout, packed, count, out) : codes_of<false>(layout, packed, count, out);
    }

    static void scales(const QuantLayout& layout, const uint8_t* block, int64_t groups, int64_t begin, int64_t count,
                       float* scales, float* minima) {
        layout.has_minimum ? scales_of<true>(layout, block, groups, begin, count, scales, minima)
                           : scales_of<false>(layout, block, groups, begin, count, scales, minima);
    }

private:
    template <bool HasTable>
    static void codes_of(const QuantLayout& layout, const uint8_t* packed, int64_t count, uint8_t* out) {
        const Ints table = Ints::four_times(layout.table);
        const int64_t group_bytes = Panels * layout.code_bytes();
        for (int64_t g = 0; g < count; ++g, packed += group_bytes, out += kSteps * kStepBytes) {
#pragma GCC unroll 12
            for (int64_t at = 0; at < 4 * kStepBytes; at += kVector) {
                const Ints both = Ints::load(packed + at);
                Ints low = bit_and(both, Ints::all_bytes(15)), high = bit_and(shift16_right(both, 4), Ints::all_bytes(15));
                if (HasTable) {
                    low = look_up(table, low);
                    high = look_up(table, high);
                }
                low.store(out + at);
                high.store(out + at + 4 * kStepBytes);
            }
            if (layout.bits > 4) add_bits(layout.bits - 4, packed + 4 * kStepBytes, out);
        }
    }

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

    // Puts the codes' bits above the fourth in place: `width` of them (1 or 2) for each step.
    static void add_bits(int width, const uint8_t* planes, uint8_t* out) {
        const int mask = (1 << width) - 1, steps = kSteps / width;  // steps whose bits one byte holds
        for (int step = 0; step < kSteps; ++step) {
            const int place = step % steps * width, left = place < 4 ? 4 - place : 0, right = place > 4 ? place - 4 : 0;
            const uint8_t* plane = planes + step / steps * kStepBytes;
            for (int64_t p = 0; p < kStepBytes; p += kVector) {
                const Ints bits = bit_and(Ints::load(plane + p), Ints::all_bytes(mask << place));
                uint8_t* code = out + step * kStepBytes + p;
                bit_or(Ints::load(code), shift16_right(shift16_left(bits, left), right)).store(code);
            }
        }
    }
};

}  // namespace vivace
