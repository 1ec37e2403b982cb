// The place of the largest element of a row, the lowest one of equals, written once over a Vec16.
#pragma once

#include "math16.h"

namespace vivace {

template <class Vec16>
struct ArgmaxKernel {
    static constexpr int64_t kStretch = 1024;

    // As numpy has it: a NaN counts as larger than everything.
    static int64_t row(const float* x, int64_t count) {
        float best = x[0];
        int64_t place = 0;
        for (int64_t begin = 0; begin < count; begin += kStretch) {
            const int64_t length = count - begin < kStretch ? count - begin : kStretch;
            if (!is_above(x + begin, length, best)) continue;
            for (int64_t i = begin; i < begin + length; ++i) {
                if (x[i] != x[i]) return i;
                if (x[i] > best) best = x[i], place = i;
            }
        }
        return place;
    }

private:
    // Whether the stretch may hold a larger element than `best`, or a NaN: then it is read one by one.
    static bool is_above(const float* x, int64_t count, float best) {
        Vec16 most = Vec16::all(best), odd = Vec16::zero();
        for (int64_t i = 0; i < count; i += kPanel) {
            const Vec16 v = load_some<Vec16>(x + i, count - i, best);
            most = max(v, most);
            odd = fma(v, Vec16::zero(), odd);  // NaN and infinity times zero are NaN, and stay so
        }
        alignas(64) float lanes[kPanel];
        most.store(lanes);
        bool found = false;
        for (int i = 0; i < kPanel; ++i) found = found || lanes[i] > best;
        odd.store(lanes);
        for (int i = 0; i < kPanel; ++i) found = found || lanes[i] != lanes[i];
        return found;
    }
};

}  // namespace vivace
