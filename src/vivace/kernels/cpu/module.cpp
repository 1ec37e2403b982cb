// The Python module `_native`: every tensor is checked here, then the interpreter lock is released.
#include "module.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "ceilings.h"
#include "kernels.h"

namespace vivace {
namespace {

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

void layer_norm(Kernels& kernels, const Array& x, const Array& weight, const MaybeArray& bias, float eps,
                const Array& y) {
    const int64_t rows = size_of(x, 0), width = size_of(x, 1);
    const float* x_data = floats(x, "x", {kAny, kAny});
    const float* weight_data = floats(weight, "weight", {width});
    const float* bias_data = floats(bias, "bias", {width});
    float* y_data = floats(y, "y", {rows, width});
    nb::gil_scoped_release unlocked;
    kernels.layer_norm(x_data, weight_data, bias_data, eps, y_data, rows, width);
}

Activation activation_named(const std::string& kind) {
    if (kind == "silu") return Activation::kSilu;
    if (kind == "gelu") return Activation::kGelu;
    if (kind == "gelu_tanh") return Activation::kGeluTanh;
    if (kind == "relu") return Activation::kRelu;
    if (kind == "relu2") return Activation::kRelu2;
    if (kind == "tanh") return Activation::kTanh;
    const std::string message = "activation '" + kind + "' is not known, expected silu, gelu, gelu_tanh, relu, relu2 or tanh";
    throw nb::value_error(message.c_str());
}

void activation(Kernels& kernels, const std::string& kind, const Array& x, const Array& y) {
    const Activation known = activation_named(kind);
    const float* x_data = floats(x, "x", {kAny});
    float* y_data = floats(y, "y", {size_of(x, 0)});
    nb::gil_scoped_release unlocked;
    kernels.activation(known, x_data, y_data, size_of(x, 0));
}

void soft_cap(Kernels& kernels, const Array& x, float cap, const Array& y) {
    const float* x_data = floats(x, "x", {kAny});
    float* y_data = floats(y, "y", {size_of(x, 0)});
    nb::gil_scoped_release unlocked;
    kernels.soft_cap(x_data, cap, y_data, size_of(x, 0));
}

double multiply_add(Kernels& kernels, int64_t rounds) {
    nb::gil_scoped_release unlocked;
    return kernels.multiply_add(rounds);
}

double byte_dots(Kernels& kernels, int64_t rounds) {
    nb::gil_scoped_release unlocked;
    return kernels.byte_dots(rounds);
}

void read_memory(Kernels& kernels, const Array& x) {
    const float* x_data = floats(x, "x", {kAny});
    nb::gil_scoped_release unlocked;
    kernels.read_memory(x_data, size_of(x, 0));
}

}  // namespace
}  // namespace vivace

NB_MODULE(_native, m) {
    using namespace vivace;
    // Kernels that a running engine still holds when the process ends are no leak, and no business of its user.
    nb::set_leak_warnings(false);
    m.doc() = "Native CPU kernels. The menu and its equations are in vivace.kernels.ops.";
    m.def("supported_isas", &supported_isas, "Instruction sets of this machine that were built in, the best first.");
    m.def("byte_dots_by", [] { return best_byte_dots().instruction; }, "What byte_dots measures.");
    nb::class_<Kernels> kernels(m, "Kernels");
    kernels.def(nb::init<const std::string&, int>(), nb::arg("isa"), nb::arg("threads"))
        .def_prop_ro("isa", &Kernels::isa)
        .def_prop_ro("threads", &Kernels::threads)
        .def("linear", &linear, nb::arg("x"), nb::arg("weights"), nb::arg("bias").none(), nb::arg("residual").none(),
             nb::arg("y"))
        .def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("weight"), nb::arg("eps"), nb::arg("y"))
        .def("layer_norm", &layer_norm, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("eps"),
             nb::arg("y"))
        .def("activation", &activation, nb::arg("kind"), nb::arg("x"), nb::arg("y"))
        .def("soft_cap", &soft_cap, nb::arg("x"), nb::arg("cap"), nb::arg("y"))
        .def("multiply_add", &multiply_add, nb::arg("rounds"), "Operations done: the processor's ceiling, to be timed.")
        .def("byte_dots", &byte_dots, nb::arg("rounds"), "Operations done on bytes: the integer ceiling, to be timed.")
        .def("read_memory", &read_memory, nb::arg("x"), "Reads x once: the memory's ceiling, to be timed.");
    add_attention(kernels);
}
