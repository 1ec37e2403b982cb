// What the machine can do at most: loops that only multiply-add, or only read. Benchmarks print results beside them.
#pragma once

#include "math16.h"

namespace vivace {

template <class Vec16>
struct CeilingKernel {
    static constexpr int kChains = Vec16::kTileRows * kGroupPanels;  // as many sums as a linear tile keeps

    // Runs `rounds` fused multiply-adds in each of kChains independent vectors; returns operations (two per fma).
    static double multiply_add(int64_t rounds) {
        Vec16 sum[kChains];
        for (int i = 0; i < kChains; ++i) sum[i] = Vec16::all(1.0f + i);
        const Vec16 a = Vec16::all(0.999f), b = Vec16::all(0.001f);
        for (int64_t round = 0; round < rounds; ++round)
#pragma GCC unroll 24
            for (int i = 0; i < kChains; ++i) sum[i] = fma(sum[i], a, b);
        float total = 0.0f;
        for (int i = 0; i < kChains; ++i) total += lane_sum(sum[i]);
        // The result is used, so that the loop stays; it is never negative.
        return total < 0.0f ? 0.0 : 2.0 * kPanel * kChains * static_cast<double>(rounds);
    }

    // The sum of `count` floats, a multiple of 64: as fast as memory delivers them. Four streams side by side read a
    // third faster than one, because each has lines of its own under way.
    static float read_memory(const float* x, int64_t count) {
        Vec16 sum[4] = {Vec16::zero(), Vec16::zero(), Vec16::zero(), Vec16::zero()};
        const int64_t part = count / 4;
        for (int64_t i = 0; i < part; i += kPanel)
            for (int v = 0; v < 4; ++v) sum[v] = add(sum[v], Vec16::load(x + v * part + i));
        return lane_sum(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
    }
};

}  // namespace vivace
