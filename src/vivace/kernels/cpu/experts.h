// Mixtures of experts: choosing the experts of each row, and one linear map per expert.
#pragma once

#include <cstdint>
#include <vector>

#include "narrow.h"
#include "quant_linear.h"

namespace vivace {

// Weights that are no codes: (panels, inputs, 16).
struct Panels {
    const void* data;
    Format format;
    int64_t inputs, outputs;
};

// One linear map of each expert, all of one shape.
struct ExpertMaps {
    struct Map {
        Panels panels;             // read unless there are quantized weights
        const QuantLinear* quant;  // or null
        const float* bias;         // (outputs) or null
    };

    int64_t inputs, outputs;
    std::vector<Map> maps;
};

// How experts are chosen: see RouteSpec in kernels/ops.py.
struct RouteStep {
    const float* logits;  // (rows, experts)
    const float* bias;    // (experts) or null
    int32_t* chosen;      // (rows, count)
    float* weights;       // (rows, count)
    int64_t experts, count, groups, kept_groups, group_best;
    bool is_sigmoid, is_normalized;
    float scale;
};

}  // namespace vivace
