// y = softmax(scale q k^T, capped) v for some queries of one sequence and one key head, written once over a Vec16.
//
// A score is one chain of fused multiply-adds over the head's dims; an output element is one chain over the units that
// the query sees, from the first to the last. The sum of exponentials takes 16 lanes counted from the first unit seen.
// So a query's result depends on what it sees alone: not on its neighbours, chunk or pages.
#pragma once

#include "activation_kernel.h"
#include "math16.h"

namespace vivace {

template <class Vec16>
struct AttentionKernel {
    static constexpr int kScoreTile = Vec16::kTileRows;          // queries that share the load of 16 keys
    static constexpr int kValueTile = Vec16::kTileRows > 2 ? 4 : 1;  // queries that share the load of a value
    static constexpr int kValueVectors = 4;                      // vectors of a value that are summed side by side

    static void block(const AttentionBlock& b) {
        for (int64_t unit = 0; unit < b.units; unit += kPanel) {
            turn_keys(b, unit);
            int query = 0;
            for (; query + kScoreTile <= b.query_count; query += kScoreTile) score<kScoreTile>(b, query, unit);
            for (; query < b.query_count; ++query) score<1>(b, query, unit);
        }
        float totals[kBlockQueries];
        for (int query = 0; query < b.query_count; ++query) totals[query] = exponentiate(b, query);
        for (int query = 0; query < b.query_count; query += kValueTile) {
            if (query + kValueTile <= b.query_count) {
                weigh_tile(b, query, totals);
            } else {
                for (int rest = query; rest < b.query_count; ++rest) weigh_one(b, rest, totals[rest]);
            }
        }
    }

private:
    // turned[d][i] = keys[unit + i][d]: then one vector holds one dim of 16 keys.
    static void turn_keys(const AttentionBlock& b, int64_t unit) {
        const int64_t count = b.units - unit < kPanel ? b.units - unit : kPanel;
        for (int64_t i = 0; i < kPanel; ++i) {
            const float* key = i < count ? b.keys[unit + i] : nullptr;
            for (int64_t d = 0; d < b.key_dim; ++d) b.turned[d * kPanel + i] = key ? key[d] : 0.0f;
        }
    }

    template <int Queries>
    static void score(const AttentionBlock& b, int query, int64_t unit) {
        Vec16 sum[Queries];
        for (int q = 0; q < Queries; ++q) sum[q] = Vec16::zero();
        for (int64_t d = 0; d < b.key_dim; ++d) {
            const Vec16 keys = Vec16::load(b.turned + d * kPanel);
            for (int q = 0; q < Queries; ++q) sum[q] = fma(Vec16::all(b.queries[query + q][d]), keys, sum[q]);
        }
        for (int q = 0; q < Queries; ++q) {
            Vec16 scaled = mul(sum[q], Vec16::all(b.scale));
            if (b.soft_cap != 0.0f) scaled = ActivationKernel<Vec16>::capped(scaled, b.soft_cap);
            scaled.store(b.scores + (query + q) * b.score_stride + unit);
        }
    }

    // Scores become e^(score - largest) in place. Returns their sum, the sink included.
    static float exponentiate(const AttentionBlock& b, int query) {
        float* scores = b.scores + query * b.score_stride + b.first[query];
        const int64_t count = b.last[query] - b.first[query];
        const float lowest = -__builtin_inff();
        Vec16 most = Vec16::all(b.sinks[query] ? *b.sinks[query] : lowest);
        for (int64_t i = 0; i < count; i += kPanel) most = max(most, load_some<Vec16>(scores + i, count - i, lowest));
        const Vec16 largest = Vec16::all(lane_max(most));
        Vec16 total = Vec16::zero();
        for (int64_t i = 0; i < count; i += kPanel) {
            const Vec16 power = exp(sub(load_some<Vec16>(scores + i, count - i, lowest), largest));
            store_some(power, scores + i, count - i);
            total = add(total, power);
        }
        float sum = lane_sum(total);
        if (b.sinks[query]) {
            alignas(64) float sink[kPanel];
            exp(sub(Vec16::all(*b.sinks[query]), largest)).store(sink);
            sum += sink[0];
        }
        return sum;
    }

    static float lane_max(Vec16 v) {
        alignas(64) float lanes[kPanel];
        v.store(lanes);
        float most = lanes[0];
        for (int i = 1; i < kPanel; ++i) most = lanes[i] > most ? lanes[i] : most;
        return most;
    }

    // Queries of a tile mostly see the same units: those are summed together, what comes before and after one by one.
    static void weigh_tile(const AttentionBlock& b, int query, const float* totals) {
        int64_t begin = b.first[query], end = b.last[query];
        for (int q = 1; q < kValueTile; ++q) {
            if (b.first[query + q] > begin) begin = b.first[query + q];
            if (b.last[query + q] < end) end = b.last[query + q];
        }
        if (begin >= end) {
            for (int q = 0; q < kValueTile; ++q) weigh_one(b, query + q, totals[query + q]);
            return;
        }
        for (int q = 0; q < kValueTile; ++q) clear(b, query + q);
        for (int q = 0; q < kValueTile; ++q) weigh<1>(b, query + q, b.first[query + q], begin);
        weigh<kValueTile>(b, query, begin, end);
        for (int q = 0; q < kValueTile; ++q) weigh<1>(b, query + q, end, b.last[query + q]);
        for (int q = 0; q < kValueTile; ++q) divide(b, query + q, totals[query + q]);
    }

    static void weigh_one(const AttentionBlock& b, int query, float total) {
        clear(b, query);
        weigh<1>(b, query, b.first[query], b.last[query]);
        divide(b, query, total);
    }

    static void clear(const AttentionBlock& b, int query) {
        for (int64_t d = 0; d < b.value_dim; ++d) b.outputs[query][d] = 0.0f;
    }

    static void divide(const AttentionBlock& b, int query, float total) {
        for (int64_t d = 0; d < b.value_dim; ++d) b.outputs[query][d] /= total;
    }

    // outputs += e v over the units begin .. end - 1.
    template <int Queries>
    static void weigh(const AttentionBlock& b, int query, int64_t begin, int64_t end) {
        int64_t d = 0;
        for (; d + kValueVectors * kPanel <= b.value_dim; d += kValueVectors * kPanel) {
            weigh_dims<Queries, kValueVectors>(b, query, begin, end, d, kPanel);
        }
        for (; d < b.value_dim; d += kPanel) weigh_dims<Queries, 1>(b, query, begin, end, d, b.value_dim - d);
    }

    // The same for Vectors * 16 dims from d on; `width` dims of the last vector exist.
    template <int Queries, int Vectors>
    static void weigh_dims(const AttentionBlock& b, int query, int64_t begin, int64_t end, int64_t d, int64_t width) {
        Vec16 sum[Queries][Vectors];
        for (int q = 0; q < Queries; ++q)
            for (int v = 0; v < Vectors; ++v) sum[q][v] = load_some<Vec16>(b.outputs[query + q] + d + v * kPanel, width, 0.0f);
        for (int64_t unit = begin; unit < end; ++unit) {
            Vec16 value[Vectors];
            for (int v = 0; v < Vectors; ++v) value[v] = load_some<Vec16>(b.values[unit] + d + v * kPanel, width, 0.0f);
            for (int q = 0; q < Queries; ++q) {
                const Vec16 weight = Vec16::all(b.scores[(query + q) * b.score_stride + unit]);
                for (int v = 0; v < Vectors; ++v) sum[q][v] = fma(weight, value[v], sum[q][v]);
            }
        }
        for (int q = 0; q < Queries; ++q)
            for (int v = 0; v < Vectors; ++v) store_some(sum[q][v], b.outputs[query + q] + d + v * kPanel, width);
    }
};

}  // namespace vivace
