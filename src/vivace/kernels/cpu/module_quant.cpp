// Quantized weights in the Python module: matrices are packed into tensors, and make up the weights of linear maps.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>

#include "module.h"

namespace vivace {
namespace {

QuantLayout layout_of(int bits, int group, int span, int zero, bool has_minimum, bool has_fine, bool is_f32,
                      const std::vector<int>& table) {
    QuantLayout layout{bits, group, span, zero, has_minimum, has_fine, is_f32, !table.empty(), {}};
    if (!table.empty() && table.size() != 16) refuse("a table has 16 codes");
    for (size_t i = 0; i < table.size(); ++i) layout.table[i] = static_cast<uint8_t>(table[i]);
    return layout;
}

// A matrix over `data`, which the object keeps alive.
struct Matrix {
    QuantMatrix matrix;
    Array data;
};

Matrix make_matrix(const QuantLayout& layout, int64_t outputs, int64_t inputs, const Array& data) {
    const int64_t bytes = QuantMatrix::data_bytes(layout, outputs, inputs);
    auto* begin = static_cast<uint8_t*>(data_of(data, "data", nb::dtype<uint8_t>(), "uint8", {bytes}));
    return {QuantMatrix(layout, outputs, inputs, begin), data};
}

const void* factors(const MaybeArray& array, const char* name, bool is_wanted, nb::dlpack::dtype dtype,
                    const char* dtype_name, const std::vector<int64_t>& shape) {
    if (array.has_value() != is_wanted) {
        refuse(std::string(name) + (is_wanted ? " is missing" : " has no place in this layout"));
    }
    return array ? data_of(*array, name, dtype, dtype_name, shape) : nullptr;
}

void pack(Matrix& self, int64_t first_output, const Array& codes, const Array& coarse, const MaybeArray& fine,
          const MaybeArray& coarse_minimum, const MaybeArray& fine_minimum) {
    const QuantMatrix& matrix = self.matrix;
    const QuantLayout& layout = matrix.layout();
    const int64_t rows = size_of(codes, 0), inputs = matrix.inputs();
    const nb::dlpack::dtype half{static_cast<uint8_t>(nb::dlpack::dtype_code::Float), 16, 1};
    const auto kind = layout.is_f32 ? nb::dtype<float>() : half;
    const char* kind_name = layout.is_f32 ? "float32" : "float16";
    const std::vector<int64_t> coarse_shape{rows, inputs / layout.span}, fine_shape{rows, inputs / layout.group};
    QuantRows source;
    source.rows = rows;
    source.codes = static_cast<uint8_t*>(data_of(codes, "codes", nb::dtype<uint8_t>(), "uint8", {rows, inputs}));
    source.coarse = factors(coarse, "coarse", true, kind, kind_name, coarse_shape);
    source.coarse_minimum = factors(coarse_minimum, "coarse_minimum", layout.has_minimum, kind, kind_name, coarse_shape);
    const auto fine_of = [&](const MaybeArray& array, const char* name, bool is_wanted) {
        return static_cast<const int8_t*>(factors(array, name, is_wanted, nb::dtype<int8_t>(), "int8", fine_shape));
    };
    source.fine = fine_of(fine, "fine", layout.has_fine);
    source.fine_minimum = fine_of(fine_minimum, "fine_minimum", layout.has_fine && layout.has_minimum);
    if (first_output < 0 || first_output + rows > matrix.outputs()) refuse("rows beyond the matrix");
    nb::gil_scoped_release unlocked;
    self.matrix.pack(first_output, source);
}

SharedWeights make_weights(const std::vector<const Matrix*>& matrices, int planes) {
    std::vector<QuantMatrix> parts;
    std::vector<Array> data;
    for (const Matrix* matrix : matrices) {
        parts.push_back(matrix->matrix);
        data.push_back(matrix->data);
    }
    return std::make_shared<Weights>(Weights{QuantLinear(std::move(parts), planes), std::move(data)});
}

Op quant_linear(const Array& x, const SharedWeights& linear, const MaybeArray& bias, const MaybeArray& residual,
                const Array& y) {
    const int64_t rows = size_of(x, 0), outputs = linear->linear.outputs();
    const float* x_data = floats(x, "x", {kAny, linear->linear.inputs()});
    const float* bias_data = floats(bias, "bias", {outputs});
    const float* residual_data = floats(residual, "residual", {rows, outputs});
    float* y_data = floats(y, "y", {rows, outputs});
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.quant_linear(x_data, linear->linear, bias_data, residual_data, y_data, extent.rows);
            }};
}

Op quant_embedding(const Array& ids, const SharedWeights& linear, float scale, const Array& y) {
    const int64_t rows = size_of(ids, 0);
    const int64_t* id_data = longs(ids, "ids", {kAny});
    float* y_data = floats(y, "y", {rows, linear->linear.inputs()});
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                check_indices("ids", id_data, extent.rows, linear->linear.outputs());
                kernels.quant_embedding(id_data, linear->linear, scale, y_data, extent.rows);
            }};
}

}  // namespace

void add_quant(nb::module_& m, Classes& c) {
    using nb::arg;
    nb::class_<QuantLayout>(m, "QuantLayout")
        .def_static("of", &layout_of, arg("bits"), arg("group"), arg("span"), arg("zero"), arg("has_minimum"),
                    arg("has_fine"), arg("is_f32"), arg("table"))
        .def("data_bytes", &QuantMatrix::data_bytes, arg("outputs"), arg("inputs"));
    nb::class_<Matrix>(m, "QuantMatrix")
        .def_static("over", &make_matrix, arg("layout"), arg("outputs"), arg("inputs"), arg("data"))
        .def("pack", &pack, arg("first_output"), arg("codes"), arg("coarse"), arg("fine").none(),
             arg("coarse_minimum").none(), arg("fine_minimum").none());
    nb::class_<Weights>(m, "QuantWeights")
        .def_static("of", &make_weights, arg("matrices"), arg("planes"))
        .def_prop_ro("planes", [](const Weights& weights) { return weights.linear.planes(); })
        .def("with_planes", [](const Weights& weights, int planes) {  // over the same data
            return std::make_shared<Weights>(Weights{weights.linear.with_planes(planes), weights.data});
        }, arg("planes"))
        .def("read_row", [](const Weights& weights, int64_t output, const Array& y) {
            check_indices("output", &output, 1, weights.linear.outputs());
            weights.linear.read_row(output, floats(y, "y", {weights.linear.inputs()}));
        });
    add_op(c, "quant_linear", &quant_linear, arg("x"), arg("linear"), arg("bias").none(), arg("residual").none(), arg("y"));
    add_op(c, "quant_embedding", &quant_embedding, arg("ids"), arg("linear"), arg("scale"), arg("y"));
}

}  // namespace vivace
