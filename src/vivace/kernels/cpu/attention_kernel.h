// y = softmax(scale q k^T, capped, plus bias) v for some queries of one sequence and one key head, written once over a
// Vec16.
//
// A score is one chain of fused multiply-adds over the head's dims; an output element is one chain over the units of a
// block that the query sees, from the first to the last. The sum of exponentials takes 16 lanes counted from the first
// unit seen. Sums of several blocks are merged in the order of their units. So a query's result depends on what it sees
// alone, and on where blocks begin: not on its neighbours, chunk, pages or threads.
#pragma once

#include "activation_kernel.h"
#include "math16.h"

namespace vivace {

template <class Vec16>
struct AttentionKernel {
    // Queries that share the load of a key, times panels: enough sums side by side to hide the time that one fma takes.
    static constexpr int kScoreQueries = Vec16::kTileRows > 2 ? 4 : 2, kScorePanels = kScoreQueries;
    // Queries that share the load of a value, times vectors of it.
    static constexpr int kValueQueries = kScoreQueries, kValueVectors = kScoreQueries;
    static constexpr int64_t kValueUnits = 4 * kPanel;  // units whose values stay in a cache for all queries

    static void block(AttentionBlock& b) {
        switch (b.format) {
            case Format::kF32: return run<Format::kF32>(b);
            case Format::kBf16: return run<Format::kBf16>(b);
            case Format::kF16: return run<Format::kF16>(b);
            case Format::kI8: return run<Format::kI8>(b);
        }
    }

    static void merge(AttentionSum& sum, const AttentionSum& later, int64_t value_dim) {
        // One of the factors is 1, and multiplying by it changes nothing.
        const bool is_larger = sum.largest >= later.largest;
        const float drop = exp_of(is_larger ? later.largest - sum.largest : sum.largest - later.largest);
        const float kept = is_larger ? 1.0f : drop, added = is_larger ? drop : 1.0f;
        for (int64_t d = 0; d < value_dim; d += kPanel) {
            const Vec16 old = mul(load_some<Vec16>(sum.output + d, value_dim - d, 0.0f), Vec16::all(kept));
            const Vec16 more = load_some<Vec16>(later.output + d, value_dim - d, 0.0f);
            store_some(fma(more, Vec16::all(added), old), sum.output + d, value_dim - d);
        }
        sum.total = sum.total * kept + later.total * added;
        if (!is_larger) sum.largest = later.largest;
    }

    static void finish(AttentionSum& sum, const float* sink, int64_t value_dim) {
        float kept = 1.0f, total = sum.total;
        if (sink && sum.largest >= *sink) {
            total += exp_of(*sink - sum.largest);
        } else if (sink) {
            kept = exp_of(sum.largest - *sink);
            total = total * kept + 1.0f;
        }
        const Vec16 totals = Vec16::all(total);
        for (int64_t d = 0; d < value_dim; d += kPanel) {
            const Vec16 old = mul(load_some<Vec16>(sum.output + d, value_dim - d, 0.0f), Vec16::all(kept));
            store_some(div(old, totals), sum.output + d, value_dim - d);
        }
    }

private:
    template <Format F>
    static void run(AttentionBlock& b) {
        const int64_t panels = (b.units + kPanel - 1) / kPanel;
        for (int64_t panel = 0; panel < panels; panel += kScorePanels) {
            const bool is_last = panel + kScorePanels >= panels;
            if (is_last) {
                fetch<F>(b.values, 0, panels, b.value_dim);
            } else {
                fetch<F>(b.keys, panel + kScorePanels, panels, b.key_dim);
            }
            with_count<kScorePanels>(panels - panel, [&](auto panel_count) {
                for (int query = 0; query < b.query_count; query += kScoreQueries) {
                    with_count<kScoreQueries>(b.query_count - query, [&](auto query_count) {
                        score<F, query_count.value, panel_count.value>(b, query, panel);
                    });
                }
            });
        }
        for (int query = 0; query < b.query_count; ++query) {
            if (b.has_slopes) add_slope(b, query);
            if (b.biases[query]) add_bias(b, query);
            exponentiate(b, query);
            if (F == Format::kI8) scale_weights(b, query);
            clear(b, query);
        }
        for (int64_t unit = 0; unit < b.units; unit += kValueUnits) {
            const int64_t end = smaller(b.units, unit + kValueUnits);
            if (unit + kValueUnits < b.units) {
                fetch<F>(b.values, (unit + kValueUnits) / kPanel, panels, b.value_dim);
            } else {
                for (int64_t next = 0; next < kNextPanels && b.next_keys[next]; ++next) {
                    fetch<F>(b.next_keys, next, next + 1, b.key_dim);
                }
            }
            for (int query = 0; query < b.query_count; query += kValueQueries) {
                with_count<kValueQueries>(b.query_count - query,
                                          [&](auto count) { weigh_tile<F, count.value>(b, query, unit, end); });
            }
        }
    }

    // Ask memory for the next few panels: each stands at a place of its own, which processors do not foresee.
    template <Format F>
    static void fetch(const void* const* all, int64_t first, int64_t panels, int64_t dim) {
        const int64_t bytes = dim * kPanel * (F == Format::kF32 ? 4 : F == Format::kI8 ? 1 : 2);
        for (int64_t panel = first; panel < smaller(panels, first + kNextPanels); ++panel) {
            for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(all[panel]) + i, 0, 2);
        }
    }

    template <int N>
    struct Count {
        static constexpr int value = N;
    };

    // f(Count<n>) for n = count, or Most where that is smaller.
    template <int Most, class F>
    static void with_count(int64_t count, const F& f) {
        if constexpr (Most > 1) {
            if (count < Most) return with_count<Most - 1>(count, f);
        }
        f(Count<Most>{});
    }

    static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
    static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

    // `count` elements of a store from `offset` on, zeros in the other lanes.
    template <Format F>
    static Vec16 load(const void* store, int64_t offset, int64_t count = kPanel) {
        if constexpr (F == Format::kF32) {
            return load_some<Vec16>(static_cast<const float*>(store) + offset, count, 0.0f);
        } else if constexpr (F == Format::kI8) {
            const int8_t* codes = static_cast<const int8_t*>(store) + offset;
            int8_t lanes[kPanel];
            if (count < kPanel) {
                for (int i = 0; i < kPanel; ++i) lanes[i] = i < count ? codes[i] : 0;
                codes = lanes;
            }
            return Vec16::load_i8(codes);
        } else {
            const uint16_t* halves = static_cast<const uint16_t*>(store) + offset;
            uint16_t lanes[kPanel];
            if (count < kPanel) {
                for (int i = 0; i < kPanel; ++i) lanes[i] = i < count ? halves[i] : 0;
                halves = lanes;
            }
            return F == Format::kF16 ? Vec16::load_f16(halves) : Vec16::load_bf16(halves);
        }
    }

    template <Format F, int Queries, int Panels>
    static void score(const AttentionBlock& b, int query, int64_t panel) {
        Vec16 sum[Queries][Panels];
        for (int q = 0; q < Queries; ++q)
            for (int p = 0; p < Panels; ++p) sum[q][p] = Vec16::zero();
        for (int64_t d = 0; d < b.key_dim; ++d) {
            Vec16 keys[Panels];
            for (int p = 0; p < Panels; ++p) keys[p] = load<F>(b.keys[panel + p], d * kPanel);
            for (int q = 0; q < Queries; ++q) {
                const Vec16 element = Vec16::all(b.queries[query + q][d]);
                for (int p = 0; p < Panels; ++p) sum[q][p] = fma(element, keys[p], sum[q][p]);
            }
        }
        for (int q = 0; q < Queries; ++q) {
            for (int p = 0; p < Panels; ++p) {
                Vec16 scaled = mul(sum[q][p], Vec16::all(b.scale));
                if (F == Format::kI8) scaled = mul(scaled, Vec16::load(b.key_scales[panel + p]));
                if (b.soft_cap != 0.0f) scaled = ActivationKernel<Vec16>::capped(scaled, b.soft_cap);
                scaled.store(b.scores + (query + q) * b.score_stride + (panel + p) * kPanel);
            }
        }
    }

    // score += slope * (unit - at), over whole panels.
    static void add_slope(const AttentionBlock& b, int query) {
        alignas(64) float lanes[kPanel];
        const int64_t panel = b.first[query] / kPanel * kPanel;
        for (int i = 0; i < kPanel; ++i) lanes[i] = static_cast<float>(panel + i - b.at[query]);  // exact below 2^24
        Vec16 distance = Vec16::load(lanes);
        float* scores = b.scores + query * b.score_stride;
        for (int64_t unit = panel; unit < b.last[query]; unit += kPanel) {
            fma(distance, Vec16::all(b.slopes[query]), Vec16::load(scores + unit)).store(scores + unit);
            distance = add(distance, Vec16::all(static_cast<float>(kPanel)));
        }
    }

    // score += bias of the distance. Units farther than the table reaches get what its end holds.
    static void add_bias(const AttentionBlock& b, int query) {
        float* scores = b.scores + query * b.score_stride;
        for (int64_t unit = b.first[query]; unit < b.last[query]; ++unit) {
            const int64_t distance = larger(-b.bias_reach, smaller(b.bias_reach, unit - b.at[query]));
            scores[unit] += b.biases[query][distance];
        }
    }

    // Scores become e^(score - largest) in place.
    static void exponentiate(AttentionBlock& b, int query) {
        float* scores = b.scores + query * b.score_stride + b.first[query];
        const int64_t count = b.last[query] - b.first[query];
        Vec16::all(-__builtin_inff()).store(scores + count);  // so that whole vectors may be read
        // Where all scores are minus infinity nothing is subtracted that would make a NaN of them.
        Vec16 most = Vec16::all(-__FLT_MAX__);
        for (int64_t i = 0; i < count; i += kPanel) most = max(most, Vec16::load(scores + i));
        b.sums[query].largest = lane_max(most);
        const Vec16 largest = Vec16::all(b.sums[query].largest);
        Vec16 total = Vec16::zero();
        for (int64_t i = 0; i < count; i += kPanel) {
            const Vec16 power = exp(sub(Vec16::load(scores + i), largest));
            power.store(scores + i);
            total = add(total, power);
        }
        b.sums[query].total = lane_sum(total);
    }

    static float exp_of(float x) {
        alignas(64) float lanes[kPanel];
        exp(Vec16::all(x)).store(lanes);
        return lanes[0];
    }

    // Values are codes: what a weight multiplies them with holds their scale.
    static void scale_weights(const AttentionBlock& b, int query) {
        float* weights = b.scores + query * b.score_stride;
        for (int64_t panel = b.first[query] / kPanel; panel * kPanel < b.last[query]; ++panel) {
            float* lanes = weights + panel * kPanel;
            mul(Vec16::load(lanes), Vec16::load(b.value_scales[panel])).store(lanes);
        }
    }

    static float lane_max(Vec16 v) {
        alignas(64) float lanes[kPanel];
        v.store(lanes);
        float most = lanes[0];
        for (int i = 1; i < kPanel; ++i) most = lanes[i] > most ? lanes[i] : most;
        return most;
    }

    // output += e v over the units begin .. end - 1 that each query sees. Queries of a tile mostly see the same units:
    // those are summed together, what comes before and after one by one.
    template <Format F, int Queries>
    static void weigh_tile(const AttentionBlock& b, int query, int64_t begin, int64_t end) {
        int64_t all_begin = begin, all_end = end;
        for (int q = 0; q < Queries; ++q) {
            all_begin = larger(all_begin, b.first[query + q]);
            all_end = smaller(all_end, b.last[query + q]);
        }
        all_begin = smaller(all_begin, end);
        all_end = larger(all_begin, all_end);
        for (int q = 0; q < Queries; ++q) {
            weigh<F, 1>(b, query + q, larger(begin, b.first[query + q]), smaller(all_begin, b.last[query + q]));
        }
        weigh<F, Queries>(b, query, all_begin, all_end);
        for (int q = 0; q < Queries; ++q) {
            weigh<F, 1>(b, query + q, larger(all_end, b.first[query + q]), smaller(end, b.last[query + q]));
        }
    }

    static void clear(const AttentionBlock& b, int query) {
        for (int64_t d = 0; d < b.value_dim; ++d) b.sums[query].output[d] = 0.0f;
    }

    template <Format F, int Queries>
    static void weigh(const AttentionBlock& b, int query, int64_t begin, int64_t end) {
        if (begin >= end) return;
        int64_t d = 0;
        for (; d + kValueVectors * kPanel <= b.value_dim; d += kValueVectors * kPanel) {
            weigh_dims<F, Queries, kValueVectors>(b, query, begin, end, d, kPanel);
        }
        if constexpr (kValueVectors > 2) {
            for (; d + 2 * kPanel <= b.value_dim; d += 2 * kPanel) {
                weigh_dims<F, Queries, 2>(b, query, begin, end, d, kPanel);
            }
        }
        for (; d < b.value_dim; d += kPanel) weigh_dims<F, Queries, 1>(b, query, begin, end, d, b.value_dim - d);
    }

    // The same for Vectors * 16 dims from d on; of a single vector `rest` dims exist.
    template <Format F, int Queries, int Vectors>
    static void weigh_dims(const AttentionBlock& b, int query, int64_t begin, int64_t end, int64_t d, int64_t rest) {
        const int64_t width = Vectors > 1 ? kPanel : rest;  // then known to the compiler
        Vec16 sum[Queries][Vectors];
        for (int q = 0; q < Queries; ++q) {
            const float* output = b.sums[query + q].output + d;
            for (int v = 0; v < Vectors; ++v) sum[q][v] = load_some<Vec16>(output + v * kPanel, width, 0.0f);
        }
        while (begin < end) {
            const void* values = b.values[begin / kPanel];
            const int64_t stop = smaller(end, (begin / kPanel + 1) * kPanel);
            for (; begin < stop; ++begin) {
                Vec16 value[Vectors];
                const int64_t offset = begin % kPanel * b.value_dim + d;
                for (int v = 0; v < Vectors; ++v) value[v] = load<F>(values, offset + v * kPanel, width);
                for (int q = 0; q < Queries; ++q) {
                    const Vec16 weight = Vec16::all(b.scores[(query + q) * b.score_stride + begin]);
                    for (int v = 0; v < Vectors; ++v) sum[q][v] = fma(weight, value[v], sum[q][v]);
                }
            }
        }
        for (int q = 0; q < Queries; ++q)
            for (int v = 0; v < Vectors; ++v) store_some(sum[q][v], b.sums[query + q].output + d + v * kPanel, width);
    }
};

}  // namespace vivace
