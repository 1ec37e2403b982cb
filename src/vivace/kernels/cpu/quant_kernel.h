// y = x W^T + b over quantized weights and activations for one block, written once over a Vec16, its Ints and its Dots.
//
// The dot product of a group is exact in 32-bit integers; groups are then added in order with one fused multiply-add
// each (one more where there are minima). Nothing else touches a sum, so a result is the same bits for any batch, tile,
// thread count and instruction set, whichever way the integers were multiplied.
#pragma once

#include "quant_activations.h"
#include "quant_unpack.h"

namespace vivace {

template <class Vec16, class Ints, class Dots>
struct QuantKernel {
    // Groups unpacked at a time: with three panels 14 KB, which stay in the first-level cache while all rows pass.
    static constexpr int64_t kStretch = 9;
    static constexpr int kSumStride = kGroupPanels * kPanel;

    static void block(const QuantBlock& b) {
        b.panels == 1 ? run<1>(b) : run<kGroupPanels>(b);
    }

private:
    struct Stretch {
        const QuantLayout* layout;
        const uint8_t* codes;  // packed, or unpacked where the kernel says so
        const float* scales;
        const float* minima;
        const uint8_t* activations;
        int64_t count;
        int64_t tile_stride;
        int zero_shift;
        const uint8_t* ahead;  // the block after this one, fetched a little with each group: bursts would stall
        int64_t ahead_lines;
    };

    template <int Panels>
    static void run(const QuantBlock& b) {
        alignas(64) float sums[kQuantRows * kSumStride];
        alignas(64) uint8_t codes[kStretch * kSteps * Panels * kVector];
        alignas(64) float scales[kStretch * 2 * Panels * kPanel], minima[kStretch * 2 * Panels * kPanel];
        for (int i = 0; i < b.rows * kSumStride; ++i) sums[i] = 0.0f;
        Stretch s;
        s.layout = b.layout;
        s.tile_stride = b.groups * activation_bytes(b.planes);
        s.zero_shift = zero_shift(b.layout->zero);
        s.scales = scales;
        s.minima = minima;
        const int64_t block_bytes = Panels * b.layout->panel_bytes(b.groups);
        const int64_t tiles = (b.rows + Dots::kTileRows - 1) / Dots::kTileRows;
        s.ahead = b.weights + block_bytes;
        s.ahead_lines = b.is_last ? 0 : (block_bytes / kVector + b.groups * tiles - 1) / (b.groups * tiles);
        for (int64_t begin = 0; begin < b.groups; begin += kStretch) {
            s.count = b.groups - begin < kStretch ? b.groups - begin : kStretch;
            s.codes = b.weights + begin * Panels * b.layout->code_bytes();
            s.activations = b.activations + begin * activation_bytes(b.planes);
            Unpacker<Vec16, Ints, Panels>::scales(*b.layout, b.weights, b.groups, begin, s.count, scales, minima);
            with_codes(*b.layout, [&](auto bits, auto has_table) {
                constexpr int kBits = bits.value;
                constexpr bool kHasTable = has_table.value;
                if constexpr (kBits < 8 && Panels > 1 && Dots::kDirectRows > 0) {
                    if (b.rows <= Dots::kDirectRows && sweep_packed<Panels, kBits, kHasTable>(b, s, sums)) return;
                }
                if (kBits < 8) {
                    Unpacker<Vec16, Ints, Panels>::template codes<kBits, kHasTable>(*b.layout, s.codes, s.count, codes);
                    s.codes = codes;
                }
                sweep_plain<Panels, kBits < 8 && !kHasTable>(b, s, sums);
            });
        }
        for (int row = 0; row < b.rows; ++row) finish(b, row, sums + row * kSumStride);
    }

    template <class T, T V>
    struct Constant {
        static constexpr T value = V;
    };

    // f(Constant<bits>, Constant<has a table>)
    template <class F>
    static void with_codes(const QuantLayout& layout, const F& f) {
        const Constant<bool, false> no{};
        if (layout.has_table) return f(Constant<int, 4>{}, Constant<bool, true>{});
        switch (layout.bits) {
            case 2: return f(Constant<int, 2>{}, no);
            case 3: return f(Constant<int, 3>{}, no);
            case 4: return f(Constant<int, 4>{}, no);
            case 5: return f(Constant<int, 5>{}, no);
            case 6: return f(Constant<int, 6>{}, no);
            default: return f(Constant<int, 8>{}, no);
        }
    }

    // The negative sums are stored 128 fold; this shift leaves them `zero` fold.
    static int zero_shift(int zero) {
        int shift = 7;
        while (zero > 1) zero >>= 1, --shift;
        return shift;
    }

    // All rows over codes that are bytes; of the types with minima none has large codes.
    template <int Panels, bool IsSmall>
    static void sweep_plain(const QuantBlock& b, Stretch& s, float* sums) {
        using Codes = PlainCodes<Ints, Panels>;
        constexpr bool kIsSmall = IsSmall && !Dots::kTakesAnyCode;
        with_form(b, [&](auto planes, auto halves) {
            if (IsSmall && b.layout->has_minimum) {
                sweep<Codes, Panels, planes.value, halves.value, true, kIsSmall>(Codes{}, b, s, sums);
            } else {
                sweep<Codes, Panels, planes.value, halves.value, false, kIsSmall>(Codes{}, b, s, sums);
            }
        });
    }

    // A few rows over codes as they stand in the block: unpacking them would take longer than their products. Done for the
    // forms that files have, each a kernel of its own; false for others.
    template <int Panels, int Bits, bool HasTable>
    static bool sweep_packed(const QuantBlock& b, Stretch& s, float* sums) {
        using Codes = PackedCodes<Ints, Panels, Bits, HasTable>;
        constexpr bool kIsSmall = !HasTable && !Dots::kTakesAnyCode;
        constexpr int kHalves = Bits == 4 || Bits == 5 ? 1 : 2;
        if (b.layout->group * kHalves != kGroup) return false;
        const Codes codes(*b.layout);
        if (b.layout->has_minimum) {
            if constexpr (Bits == 2 || (kHalves == 1 && !HasTable)) {
                b.planes == 1 ? sweep<Codes, Panels, 1, kHalves, true, kIsSmall>(codes, b, s, sums)
                              : sweep<Codes, Panels, 2, kHalves, true, kIsSmall>(codes, b, s, sums);
                return true;
            }
        } else if constexpr (Bits != 2) {
            b.planes == 1 ? sweep<Codes, Panels, 1, kHalves, false, kIsSmall>(codes, b, s, sums)
                          : sweep<Codes, Panels, 2, kHalves, false, kIsSmall>(codes, b, s, sums);
            return true;
        }
        return false;
    }

    // f(Constant<planes>, Constant<halves>)
    template <class F>
    static void with_form(const QuantBlock& b, const F& f) {
        const Constant<int, 1> one{};
        const Constant<int, 2> two{};
        const bool has_halves = b.layout->group == 16;
        if (b.planes == 1) {
            has_halves ? f(one, two) : f(one, one);
        } else {
            has_halves ? f(two, two) : f(two, one);
        }
    }

    template <class Codes, int Panels, int Planes, int Halves, bool HasMinimum, bool IsSmall>
    static void sweep(const Codes& codes, const QuantBlock& b, Stretch& s, float* sums) {
        constexpr int kRows = Dots::kTileRows;
        for (int row = 0; row < b.rows; row += kRows) {
            const uint8_t* activations = s.activations + row / kTile * s.tile_stride;
            float* kept = sums + row * kSumStride;
            rest<kRows, Codes, Panels, Planes, Halves, HasMinimum, IsSmall>(codes, b.rows - row, s, activations, row % kTile,
                                                                           kept);
        }
    }

    // The tile of `rows` rows, at most Rows.
    template <int Rows, class Codes, int Panels, int Planes, int Halves, bool HasMinimum, bool IsSmall>
    static void rest(const Codes& codes, int rows, Stretch& s, const uint8_t* activations, int first, float* kept) {
        if constexpr (Rows > 1) {
            if (rows < Rows) {
                return rest<Rows - 1, Codes, Panels, Planes, Halves, HasMinimum, IsSmall>(codes, rows, s, activations, first,
                                                                                         kept);
            }
        }
        tile<Rows, Codes, Panels, Planes, Halves, HasMinimum, IsSmall>(codes, s, activations, first, kept);
    }

    template <int Rows, class Codes, int Panels, int Planes, int Halves, bool HasMinimum, bool IsSmall>
    __attribute__((noinline)) static void tile(const Codes& from, Stretch& s, const uint8_t* activations, int first,
                                               float* kept) {
        constexpr int kHalfSteps = kSteps / Halves;
        const Codes code = from;
        Vec16 sum[Rows][Panels];
        for (int r = 0; r < Rows; ++r)
            for (int p = 0; p < Panels; ++p) sum[r][p] = Vec16::load(kept + r * kSumStride + p * kPanel);
        const uint8_t* codes = s.codes;
        const float *scales = s.scales, *minima = s.minima;
        const uint8_t* ahead = s.ahead;
        for (int64_t g = 0; g < s.count; ++g, activations += activation_bytes(Planes), codes += Codes::kGroupBytes) {
            for (int64_t i = 0; i < s.ahead_lines; ++i, ahead += kVector) __builtin_prefetch(ahead, 0, 2);
            const auto& head = *reinterpret_cast<const ActivationGroup*>(activations);
            const auto* plane = reinterpret_cast<const int8_t*>(activations + sizeof(ActivationGroup)) + first * kGroup;
#pragma GCC unroll 2
            for (int half = 0; half < Halves; ++half) {
                const int which = Halves == 1 ? 0 : 1 + half;
                Ints dot[Rows][Panels];
                if (Planes == 1) {
                    for (int r = 0; r < Rows; ++r)
                        for (int p = 0; p < Panels; ++p) dot[r][p] = start<HasMinimum>(s, head.negative[which][first + r]);
                    dots<Rows, Panels, kHalfSteps, IsSmall>(code, codes, half * kHalfSteps, plane, dot);
                } else {
                    for (int r = 0; r < Rows; ++r)
                        for (int p = 0; p < Panels; ++p) dot[r][p] = Ints::all(0);
                    dots<Rows, Panels, kHalfSteps, IsSmall>(code, codes, half * kHalfSteps, plane, dot);
                    // The high plane counts 64 fold; products with the low one (0 .. 63) are small for any code.
                    for (int r = 0; r < Rows; ++r) {
                        const Ints from = start<HasMinimum>(s, head.negative[which][first + r]);
                        for (int p = 0; p < Panels; ++p) dot[r][p] = add(shift_left(dot[r][p], 6), from);
                    }
                    dots<Rows, Panels, kHalfSteps, true>(code, codes, half * kHalfSteps, plane + kTile * kGroup, dot);
                }
                for (int p = 0; p < Panels; ++p, scales += kPanel, minima += kPanel) {
                    const Vec16 scale = Vec16::load(scales);
                    const Vec16 minimum = HasMinimum ? Vec16::load(minima) : Vec16::zero();
                    for (int r = 0; r < Rows; ++r) {
                        if (HasMinimum) sum[r][p] = fma(minimum, Vec16::all(head.sum[which][first + r]), sum[r][p]);
                        const Vec16 product = mul(dot[r][p].floats(), scale);
                        sum[r][p] = fma(product, Vec16::all(head.scale[first + r]), sum[r][p]);
                    }
                }
            }
        }
        s.ahead = ahead;
        for (int r = 0; r < Rows; ++r)
            for (int p = 0; p < Panels; ++p) sum[r][p].store(kept + r * kSumStride + p * kPanel);
    }

    // What a dot product begins with: the part of the zero, none where there are minima.
    template <bool HasMinimum>
    static Ints start(const Stretch& s, int32_t negative) {
        return Ints::all(HasMinimum ? 0 : negative >> s.zero_shift);
    }

    // dot[r][p] += the products of the steps `begin` .. begin + Steps - 1, four inputs each.
    template <int Rows, int Panels, int Steps, bool IsSmall, class Codes>
    static inline __attribute__((always_inline)) void dots(const Codes& from, const uint8_t* codes, int begin,
                                                           const int8_t* plane, Ints (&dot)[Rows][Panels]) {
#pragma GCC unroll 8
        for (int step = begin; step < begin + Steps; ++step) {
            Ints code[Panels];
            for (int p = 0; p < Panels; ++p) code[p] = from.at(codes, step, p);
            for (int r = 0; r < Rows; ++r) {
                const Ints four = Ints::all_of(plane + r * kGroup + step * 4);
                for (int p = 0; p < Panels; ++p) dot[r][p] = Dots::template add<IsSmall>(dot[r][p], code[p], four);
            }
        }
    }

    static void finish(const QuantBlock& b, int row, const float* sums) {
        float* y = b.y + row * b.y_stride;
        const float* residual = b.residual ? b.residual + row * b.y_stride : nullptr;
        for (int c = 0; c < b.columns; ++c) {
            float value = sums[c];
            if (b.bias) value += b.bias[c];
            if (residual) value = residual[c] + value;
            y[c] = value;
        }
    }
};

}  // namespace vivace
