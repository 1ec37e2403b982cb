// The Python module `_native`: every tensor is checked here, then the interpreter lock is released.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels.h"

namespace nb = nanobind;

namespace vivace {
namespace {

using Array = nb::ndarray<>;
using MaybeArray = std::optional<Array>;

constexpr int64_t kAny = -1;

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "(";
    for (size_t i = 0; i < shape.size(); ++i) {
        text += (i ? ", " : "") + (shape[i] == kAny ? std::string("any") : std::to_string(shape[i]));
    }
    return text + ")";
}

bool is_contiguous(const Array& array) {
    int64_t expected = 1;
    for (size_t i = array.ndim(); i-- > 0;) {
        if (array.shape(i) > 1 && array.stride(i) != expected) return array.size() == 0;
        expected *= static_cast<int64_t>(array.shape(i));
    }
    return true;
}

bool has_shape(const Array& array, const std::vector<int64_t>& shape) {
    if (array.ndim() != shape.size()) return false;
    for (size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] != kAny && static_cast<int64_t>(array.shape(i)) != shape[i]) return false;
    }
    return true;
}

// The data of a contiguous float32 CPU tensor of the given shape; anything else raises ValueError and names `name`.
float* floats(const Array& array, const char* name, const std::vector<int64_t>& shape) {
    const bool is_float = array.dtype() == nb::dtype<float>();
    const bool is_cpu = array.device_type() == nb::device::cpu::value;
    if (is_float && is_cpu && is_contiguous(array) && has_shape(array, shape)) return static_cast<float*>(array.data());
    std::vector<int64_t> actual(array.ndim());
    for (size_t i = 0; i < actual.size(); ++i) actual[i] = static_cast<int64_t>(array.shape(i));
    const std::string problem = !is_float ? " is not float32" : !is_cpu ? " is not on the CPU"
                                : !is_contiguous(array) ? " is not contiguous" : " has the wrong shape";
    const std::string message = std::string(name) + problem + ": shape " + shape_text(actual) +
                                ", expected contiguous float32 " + shape_text(shape) + " on the CPU";
    throw nb::value_error(message.c_str());
}

float* floats(const MaybeArray& array, const char* name, const std::vector<int64_t>& shape) {
    return array ? floats(*array, name, shape) : nullptr;
}

int64_t size_of(const Array& array, size_t axis) {
    return axis < array.ndim() ? static_cast<int64_t>(array.shape(axis)) : kAny;
}

void linear(Kernels& kernels, const Array& x, const Array& weights, const MaybeArray& bias, const MaybeArray& residual,
            const Array& y) {
    const int64_t rows = size_of(x, 0), inputs = size_of(x, 1), outputs = size_of(y, 1);
    const float* x_data = floats(x, "x", {kAny, kAny});
    float* y_data = floats(y, "y", {rows, kAny});
    const float* weight_data = floats(weights, "weights", {(outputs + kPanel - 1) / kPanel, inputs, kPanel});
    const float* bias_data = floats(bias, "bias", {outputs});
    const float* residual_data = floats(residual, "residual", {rows, outputs});
    nb::gil_scoped_release unlocked;
    kernels.linear(x_data, weight_data, bias_data, residual_data, y_data, rows, inputs, outputs);
}

void rms_norm(Kernels& kernels, const Array& x, const Array& weight, float eps, const Array& y) {
    const int64_t rows = size_of(x, 0), width = size_of(x, 1);
    const float* x_data = floats(x, "x", {kAny, kAny});
    const float* weight_data = floats(weight, "weight", {width});
    float* y_data = floats(y, "y", {rows, width});
    nb::gil_scoped_release unlocked;
    kernels.rms_norm(x_data, weight_data, eps, y_data, rows, width);
}

}  // namespace
}  // namespace vivace

NB_MODULE(_native, m) {
    using namespace vivace;
    m.doc() = "Native CPU kernels. The menu and its equations are in vivace.kernels.ops.";
    m.def("supported_isas", &supported_isas, "Instruction sets of this machine that were built in, the best first.");
    nb::class_<Kernels>(m, "Kernels")
        .def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("threads"))
        .def_prop_ro("isa", &Kernels::isa)
        .def_prop_ro("threads", &Kernels::threads)
        .def("linear", &linear, nb::arg("x"), nb::arg("weights"), nb::arg("bias").none(), nb::arg("residual").none(),
             nb::arg("y"))
        .def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("y"));
}
