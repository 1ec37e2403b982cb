// Experts in the Python module: their weights as one object, choosing them, and their linear maps.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>

#include "module.h"

namespace vivace {
namespace {

// The maps of all experts, and what keeps their weights alive.
struct Experts {
    ExpertMaps maps;
    std::vector<Array> arrays;
    std::vector<SharedWeights> quantized;

    void add(ExpertMaps::Map map, const MaybeArray& bias) {
        map.bias = floats(bias, "bias", {maps.outputs});
        if (bias) arrays.push_back(*bias);
        maps.maps.push_back(map);
    }
};
using SharedExperts = std::shared_ptr<Experts>;

SharedExperts make_experts(int64_t inputs, int64_t outputs) {
    return std::make_shared<Experts>(Experts{{inputs, outputs, {}}, {}, {}});
}

void add_panels(Experts& self, const Array& data, const MaybeArray& bias) {
    self.add({panels_of(data, self.maps.inputs, self.maps.outputs), nullptr, nullptr}, bias);
    self.arrays.push_back(data);
}

void add_quant_map(Experts& self, const SharedWeights& weights, const MaybeArray& bias) {
    const QuantLinear& linear = weights->linear;
    if (linear.inputs() != self.maps.inputs || linear.outputs() != self.maps.outputs) refuse("the experts differ in shape");
    self.add({{}, &linear, nullptr}, bias);
    self.quantized.push_back(weights);
}

Op route(const Array& logits, const MaybeArray& bias, bool is_sigmoid, int64_t groups, int64_t kept_groups,
         int64_t group_best, bool is_normalized, float scale, const Array& chosen, const Array& weights) {
    const int64_t rows = size_of(logits, 0);
    RouteStep step{};
    step.experts = size_of(logits, 1);
    step.count = size_of(chosen, 1);
    step.logits = floats(logits, "logits", {kAny, kAny});
    step.bias = floats(bias, "bias", {step.experts});
    step.chosen = ints(chosen, "chosen", {rows, kAny});
    step.weights = floats(weights, "weights", {rows, step.count});
    step.groups = groups, step.kept_groups = kept_groups, step.group_best = group_best;
    step.is_sigmoid = is_sigmoid, step.is_normalized = is_normalized, step.scale = scale;
    if (groups < 1 || step.experts % groups) {
        refuse(std::to_string(step.experts) + " experts do not divide into " + std::to_string(groups) + " groups");
    }
    const int64_t members = step.experts / groups;
    if (kept_groups < 1 || kept_groups > groups || group_best < 1 || group_best > members) refuse("groups do not fit");
    if (step.count < 1 || step.count > kept_groups * members) {
        refuse("a row takes " + std::to_string(step.count) + " experts out of " + std::to_string(kept_groups * members));
    }
    return {{rows}, [=](Kernels& kernels, const Extent& extent) { kernels.route(step, extent.rows); }};
}

Op grouped_linear(const Array& x, const Array& chosen, const SharedExperts& experts, const Array& y) {
    const int64_t rows = size_of(chosen, 0), count = size_of(chosen, 1);
    const int64_t inputs = experts->maps.inputs, outputs = experts->maps.outputs;
    const bool has_places = x.ndim() == 3;
    const float* x_data =
        has_places ? floats(x, "x", {rows, count, inputs}) : floats(x, "x", std::vector<int64_t>{rows, inputs});
    const int32_t* chosen_data = ints(chosen, "chosen", {kAny, kAny});
    float* y_data = floats(y, "y", {rows, count, outputs});
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                const auto limit = static_cast<int64_t>(experts->maps.maps.size());
                check_indices("chosen", chosen_data, extent.rows * count, limit);
                kernels.grouped_linear(x_data, has_places, chosen_data, count, experts->maps, y_data, extent.rows);
            }};
}

Op combine(const Array& x, const Array& weights, const MaybeArray& residual, const Array& y) {
    const int64_t rows = size_of(x, 0), count = size_of(x, 1), width = size_of(x, 2);
    const float* x_data = floats(x, "x", {kAny, kAny, kAny});
    const float* weight_data = floats(weights, "weights", {rows, count});
    const float* residual_data = floats(residual, "residual", {rows, width});
    float* y_data = floats(y, "y", {rows, width});
    if (count < 1) refuse("nothing to combine");
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.combine(x_data, weight_data, residual_data, y_data, extent.rows, count, width);
            }};
}

}  // namespace

void add_experts(nb::module_& m, Classes& c) {
    using nb::arg;
    nb::class_<Experts>(m, "Experts")
        .def_static("of", &make_experts, arg("inputs"), arg("outputs"))
        .def("add_panels", &add_panels, arg("data"), arg("bias").none())
        .def("add_quant", &add_quant_map, arg("weights"), arg("bias").none());
    add_op(c, "route", &route, arg("logits"), arg("bias").none(), arg("is_sigmoid"), arg("groups"), arg("kept_groups"),
           arg("group_best"), arg("is_normalized"), arg("scale"), arg("chosen"), arg("weights"));
    add_op(c, "grouped_linear", &grouped_linear, arg("x"), arg("chosen"), arg("experts"), arg("y"));
    add_op(c, "combine", &combine, arg("x"), arg("weights"), arg("residual").none(), arg("y"));
}

}  // namespace vivace
