// Mixtures of experts. A row's experts and results depend on nothing but the row: how many rows an expert gets decides
// only which rows are computed side by side.
#include "experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels.h"

namespace vivace {
namespace {

constexpr float kTiny = 1e-20f;  // keeps a sum of weights that are all zero from dividing by zero

// Whether place a comes before place b: the larger value, a NaN before everything, the lower place of equals.
struct Before {
    const float* values;

    bool operator()(int32_t a, int32_t b) const {
        if (is_above(values[a], values[b])) return true;
        return !is_above(values[b], values[a]) && a < b;
    }
    static bool is_above(float a, float b) { return std::isnan(a) ? !std::isnan(b) : a > b; }
};

// The first `count` places in that order, out of those listed.
void sort_best(std::vector<int32_t>& places, int64_t count, const float* values) {
    std::partial_sort(places.begin(), places.begin() + count, places.end(), Before{values});
}

// Lists the experts of the groups that take part.
void list_experts(const RouteStep& step, const float* ranks, std::vector<int32_t>& experts) {
    experts.resize(static_cast<size_t>(step.experts));
    std::iota(experts.begin(), experts.end(), 0);
    if (step.kept_groups == step.groups) return;
    const int64_t members = step.experts / step.groups;
    std::vector<float> sums(static_cast<size_t>(step.groups));
    std::vector<int32_t> groups(sums.size()), best(static_cast<size_t>(members));
    std::iota(groups.begin(), groups.end(), 0);
    for (int32_t group : groups) {
        std::iota(best.begin(), best.end(), static_cast<int32_t>(group * members));
        sort_best(best, step.group_best, ranks);
        for (int64_t i = 0; i < step.group_best; ++i) sums[static_cast<size_t>(group)] += ranks[best[static_cast<size_t>(i)]];
    }
    sort_best(groups, step.kept_groups, sums.data());
    experts.clear();
    for (int64_t i = 0; i < step.kept_groups; ++i) {
        for (int64_t member = 0; member < members; ++member) {
            experts.push_back(static_cast<int32_t>(groups[static_cast<size_t>(i)] * members + member));
        }
    }
}

// Rows by their expert: starts[e] .. starts[e + 1] of `order` are the pairs (row, place) that chose expert e.
struct Sorted {
    std::vector<int64_t> order, starts;

    Sorted(const int32_t* chosen, int64_t pairs, int64_t experts)
        : order(static_cast<size_t>(pairs)), starts(static_cast<size_t>(experts + 1)) {
        for (int64_t pair = 0; pair < pairs; ++pair) ++starts[static_cast<size_t>(chosen[pair] + 1)];
        std::partial_sum(starts.begin(), starts.end(), starts.begin());
        std::vector<int64_t> next(starts.begin(), starts.end() - 1);
        for (int64_t pair = 0; pair < pairs; ++pair) {
            order[static_cast<size_t>(next[static_cast<size_t>(chosen[pair])]++)] = pair;
        }
    }
};

}  // namespace

void Kernels::route(const RouteStep& step, int64_t rows) {
    share_rows(rows, step.experts * 32, [&](int64_t begin, int64_t end) {
        std::vector<float> scores(static_cast<size_t>(step.experts)), ranks(scores.size());
        std::vector<int32_t> experts;
        for (int64_t row = begin; row < end; ++row) {
            table_.route_scores(step.logits + row * step.experts, step.experts, step.is_sigmoid, scores.data());
            for (size_t e = 0; e < scores.size(); ++e) ranks[e] = step.bias ? scores[e] + step.bias[e] : scores[e];
            list_experts(step, ranks.data(), experts);
            sort_best(experts, step.count, ranks.data());
            int32_t* chosen = step.chosen + row * step.count;
            float* weights = step.weights + row * step.count;
            float total = kTiny;
            for (int64_t i = 0; i < step.count; ++i) {
                chosen[i] = experts[static_cast<size_t>(i)];
                weights[i] = scores[static_cast<size_t>(chosen[i])];
                total += weights[i];
            }
            for (int64_t i = 0; i < step.count; ++i) {
                weights[i] = (step.is_normalized ? weights[i] / total : weights[i]) * step.scale;
            }
        }
    });
}

void Kernels::grouped_linear(const float* x, bool has_places, const int32_t* chosen, int64_t count,
                             const ExpertMaps& experts, float* y, int64_t rows) {
    const int64_t pairs = rows * count, inputs = experts.inputs, outputs = experts.outputs;
    const Sorted sorted(chosen, pairs, static_cast<int64_t>(experts.maps.size()));
    // Kept from call to call; the threads of the pool use it, only this one resizes it.
    thread_local std::vector<float> room;
    const size_t needed = static_cast<size_t>(pairs * (inputs + outputs));
    if (room.size() < needed) room.resize(needed);
    float* const gathered = room.data();
    float* const found = gathered + pairs * inputs;
    share_rows(pairs, inputs, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t pair = sorted.order[static_cast<size_t>(i)], row = has_places ? pair : pair / count;
            std::memcpy(gathered + i * inputs, x + row * inputs, sizeof(float) * inputs);
        }
    });
    for (size_t e = 0; e < experts.maps.size(); ++e) {
        const ExpertMaps::Map& map = experts.maps[e];
        const int64_t first = sorted.starts[e], mine = sorted.starts[e + 1] - first;
        if (mine == 0) continue;
        const float* source = gathered + first * inputs;
        float* target = found + first * outputs;
        if (map.quant) {
            quant_linear(source, *map.quant, map.bias, nullptr, target, mine);
        } else {
            linear(source, map.panels, map.bias, nullptr, target, mine);
        }
    }
    share_rows(pairs, outputs, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            const int64_t pair = sorted.order[static_cast<size_t>(i)];
            std::memcpy(y + pair * outputs, found + i * outputs, sizeof(float) * outputs);
        }
    });
}

void Kernels::combine(const float* x, const float* weights, const float* residual, float* y, int64_t rows, int64_t count,
                      int64_t width) {
    share_rows(rows, width * count, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* from = x + row * count * width;
            const float* weight = weights + row * count;
            float* out = y + row * width;
            for (int64_t i = 0; i < width; ++i) out[i] = from[i] * weight[0];
            for (int64_t place = 1; place < count; ++place) {
                from += width;
                for (int64_t i = 0; i < width; ++i) out[i] += from[i] * weight[place];
            }
            if (residual) {
                for (int64_t i = 0; i < width; ++i) out[i] = residual[row * width + i] + out[i];
            }
        }
    });
}

}  // namespace vivace
