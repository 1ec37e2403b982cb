// The operations on rows, as methods of Kernels and Tape: see module.h.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "module.h"

namespace vivace {

Panels panels_of(const Array& weights, int64_t inputs, int64_t outputs) {
    const Format format = format_of(weights, "weights");
    const void* data = data_of(weights, "weights", weights.dtype(), "float",
                               {(outputs + kPanel - 1) / kPanel, inputs, kPanel});
    return {data, format, inputs, outputs};
}

namespace {

Op linear(const Array& x, const Array& weights, const MaybeArray& bias, const MaybeArray& residual, const Array& y) {
    const int64_t rows = size_of(x, 0), inputs = size_of(x, 1), outputs = size_of(y, 1);
    const float* x_data = floats(x, "x", {kAny, kAny});
    float* y_data = floats(y, "y", {rows, kAny});
    const Panels panels = panels_of(weights, inputs, outputs);
    const float* bias_data = floats(bias, "bias", {outputs});
    const float* residual_data = floats(residual, "residual", {rows, outputs});
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.linear(x_data, panels, bias_data, residual_data, y_data, extent.rows);
            }};
}

Op rms_norm(const Array& x, const Array& weight, float eps, const Array& y) {
    const RowShape shape = rows_of(x);
    const float* x_data = floats(x, "x", shape_of(x));
    const float* weight_data = floats(weight, "weight", {shape.width});
    float* y_data = floats(y, "y", shape_of(x));
    return {{shape.rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.rms_norm(x_data, weight_data, eps, y_data, extent.rows * shape.inner, shape.width);
            }};
}

Op layer_norm(const Array& x, const Array& weight, const MaybeArray& bias, float eps, const Array& y) {
    const RowShape shape = rows_of(x);
    const float* x_data = floats(x, "x", shape_of(x));
    const float* weight_data = floats(weight, "weight", {shape.width});
    const float* bias_data = floats(bias, "bias", {shape.width});
    float* y_data = floats(y, "y", shape_of(x));
    return {{shape.rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.layer_norm(x_data, weight_data, bias_data, eps, y_data, extent.rows * shape.inner, shape.width);
            }};
}

Activation activation_named(const std::string& kind) {
    if (kind == "silu") return Activation::kSilu;
    if (kind == "gelu") return Activation::kGelu;
    if (kind == "gelu_tanh") return Activation::kGeluTanh;
    if (kind == "relu") return Activation::kRelu;
    if (kind == "relu2") return Activation::kRelu2;
    if (kind == "tanh") return Activation::kTanh;
    refuse("activation '" + kind + "' is not known, expected silu, gelu, gelu_tanh, relu, relu2 or tanh");
}

bool is_interleaved(const std::string& pairing) {
    if (pairing != "half" && pairing != "interleaved") refuse("pairing '" + pairing + "' is not half or interleaved");
    return pairing == "interleaved";
}

Op activation(const std::string& kind, const Array& x, const Array& y) {
    const Activation known = activation_named(kind);
    const RowShape shape = rows_of(x);
    const float* x_data = floats(x, "x", shape_of(x));
    float* y_data = floats(y, "y", shape_of(x));
    return {{shape.rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.activation(known, x_data, y_data, extent.rows * shape.per_row());
            }};
}

Op soft_cap(const Array& x, float cap, const Array& y) {
    const RowShape shape = rows_of(x);
    const float* x_data = floats(x, "x", shape_of(x));
    float* y_data = floats(y, "y", shape_of(x));
    return {{shape.rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.soft_cap(x_data, cap, y_data, extent.rows * shape.per_row());
            }};
}

Op add(const Array& x, const Array& z, const Array& y) {
    const RowShape shape = rows_of(x);
    const float* x_data = floats(x, "x", shape_of(x));
    const float* z_data = floats(z, "z", shape_of(x));
    float* y_data = floats(y, "y", shape_of(x));
    return {{shape.rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.sum(x_data, z_data, y_data, extent.rows * shape.per_row());
            }};
}

// `gate` and `up`: the first columns of the two halves of x. Any dims between the rows and the last one.
Op gate(const std::string& kind, const Array& x, int64_t gate, int64_t up, const Array& y) {
    const Activation known = activation_named(kind);
    const RowShape shape = rows_of(y);
    const int64_t stride = size_of(x, x.ndim() - 1);
    std::vector<int64_t> x_shape = shape_of(y);
    if (x_shape.size() < 2) refuse("y has no rows");
    x_shape.back() = kAny;
    const float* x_data = floats(x, "x", x_shape);
    float* y_data = floats(y, "y", shape_of(y));
    if (gate < 0 || up < 0 || std::max(gate, up) + shape.width > stride) refuse("gate and up do not fit into the rows of x");
    return {{shape.rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.gate(known, x_data, gate, up, y_data, extent.rows * shape.inner, stride, shape.width);
            }};
}

Op embedding(const Array& ids, const Array& weights, int64_t outputs, float scale, const Array& y) {
    const int64_t rows = size_of(ids, 0), inputs = size_of(y, 1);
    const int64_t* id_data = longs(ids, "ids", {kAny});
    const Panels panels = panels_of(weights, inputs, outputs);
    float* y_data = floats(y, "y", {rows, kAny});
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                check_indices("ids", id_data, extent.rows, outputs);
                kernels.embedding(id_data, panels, scale, y_data, extent.rows);
            }};
}

Op take_rows(const Array& x, const Array& rows, const Array& y) {
    const int64_t count = size_of(x, 0), width = size_of(x, 1), chosen = size_of(rows, 0);
    const float* x_data = floats(x, "x", {kAny, kAny});
    const int64_t* row_data = longs(rows, "rows", {kAny});
    float* y_data = floats(y, "y", {chosen, width});
    return {{chosen}, [=](Kernels& kernels, const Extent& extent) {
                check_indices("rows", row_data, extent.rows, count);
                kernels.take_rows(x_data, row_data, y_data, extent.rows, width);
            }};
}

Op table_rows(const Array& ids, const Array& table, float scale, const Array& y) {
    const int64_t rows = size_of(ids, 0), count = size_of(table, 0), width = size_of(table, 1);
    const int64_t* id_data = longs(ids, "ids", {kAny});
    const Format format = format_of(table, "table");
    const void* data = data_of(table, "table", table.dtype(), "float", {kAny, kAny});
    float* y_data = floats(y, "y", {rows, width});
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                check_indices("ids", id_data, extent.rows, count);
                kernels.table_rows(id_data, data, format, scale, y_data, extent.rows, width);
            }};
}

Op mean_rows(const Array& x, const Array& first, const Array& last, const Array& y) {
    const int64_t count = size_of(x, 0), width = size_of(x, 1), means = size_of(first, 0);
    const float* x_data = floats(x, "x", {kAny, kAny});
    const int64_t* first_data = longs(first, "first", {kAny});
    const int64_t* last_data = longs(last, "last", {means});
    float* y_data = floats(y, "y", {means, width});
    return {{means}, [=](Kernels& kernels, const Extent& extent) {
                for (int64_t i = 0; i < extent.rows; ++i) {
                    if (first_data[i] >= 0 && first_data[i] < last_data[i] && last_data[i] <= count) continue;
                    refuse("rows " + std::to_string(first_data[i]) + " to " + std::to_string(last_data[i]) +
                           " have no mean, expected one or more of " + std::to_string(count));
                }
                kernels.mean_rows(x_data, first_data, last_data, y_data, extent.rows, width);
            }};
}

Op unit_rows(const Array& x, const Array& y) {
    const int64_t rows = size_of(x, 0), width = size_of(x, 1);
    const float* x_data = floats(x, "x", {kAny, kAny});
    float* y_data = floats(y, "y", {rows, width});
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.unit_rows(x_data, y_data, extent.rows, width);
            }};
}

Op argmax(const Array& x, const Array& y) {
    const int64_t rows = size_of(x, 0), width = size_of(x, 1);
    const float* x_data = floats(x, "x", {kAny, kAny});
    int64_t* y_data = longs(y, "y", {rows});
    if (width < 1) refuse("argmax of no elements");
    return {{rows}, [=](Kernels& kernels, const Extent& extent) { kernels.argmax(x_data, y_data, extent.rows, width); }};
}

Op draw(const Array& x, float temperature, int64_t top_k, double top_p, double min_p, const Array& uniforms,
        const Array& y) {
    const int64_t rows = size_of(x, 0), width = size_of(x, 1);
    const float* x_data = floats(x, "x", {kAny, kAny});
    const double* uniform_data = doubles(uniforms, "uniforms", {rows});
    int64_t* y_data = longs(y, "y", {rows});
    const DrawChoice choice{temperature, top_k, top_p, min_p};
    if (width < 1) refuse("a draw from no scores");
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.draw(x_data, choice, uniform_data, y_data, extent.rows, width);
            }};
}

Op rope_angles(const Array& position, const Array& variant, const Array& frequencies, float scale, const Array& cos,
               const Array& sin) {
    const int64_t rows = size_of(position, 0), axes = size_of(position, 1);
    const int64_t variants = size_of(frequencies, 0), width = size_of(frequencies, 1);
    const int64_t* position_data = longs(position, "position", {kAny, kAny});
    const int32_t* variant_data = ints(variant, "variant", {rows});
    const float* frequency_data = floats(frequencies, "frequencies", {kAny, kAny});
    float* cos_data = floats(cos, "cos", {rows, width});
    float* sin_data = floats(sin, "sin", {rows, width});
    if (axes < 1) refuse("positions have no axis");
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                check_indices("variant", variant_data, extent.rows, variants);
                kernels.angles(position_data, axes, variant_data, frequency_data, scale, cos_data, sin_data, extent.rows,
                               width);
            }};
}

Op rope(const Array& x, const Array& cos, const Array& sin, const std::string& pairing, const Array& y) {
    const int64_t rows = size_of(x, 0), heads = size_of(x, 1), dim = size_of(x, 2), angles = size_of(cos, 1);
    const bool interleaved = is_interleaved(pairing);
    const float* x_data = floats(x, "x", {kAny, kAny, kAny});
    const float* cos_data = floats(cos, "cos", {rows, kAny});
    const float* sin_data = floats(sin, "sin", {rows, angles});
    float* y_data = floats(y, "y", shape_of(x));
    if (2 * angles > dim) refuse("more angles than pairs of dims");
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                kernels.rope(x_data, cos_data, sin_data, y_data, extent.rows, heads, dim, angles, interleaved);
            }};
}

Op qkv_store(const Array& x, const MaybeArray& q_norm, const MaybeArray& k_norm, float eps, const std::string& pairing,
             const Array& cos, const Array& sin, const Array& slot, const Array& keys, const Array& values,
             const MaybeArray& key_scales, const MaybeArray& value_scales, const Array& q) {
    const int64_t rows = size_of(x, 0);
    QkvStep step{};
    step.is_interleaved = is_interleaved(pairing);
    step.eps = eps;
    step.store = store_of({keys, values, key_scales, value_scales});
    step.heads = size_of(q, 1);
    const int64_t key_dim = step.store.key_dim, kv_width = step.store.heads * (key_dim + step.store.value_dim);
    step.angles = size_of(cos, 1);
    step.q = floats(q, "q", {rows, kAny, key_dim});
    step.x = floats(x, "x", {kAny, step.heads * key_dim + kv_width});
    step.q_norm = floats(q_norm, "q_norm", {key_dim});
    step.k_norm = floats(k_norm, "k_norm", {key_dim});
    step.cos = floats(cos, "cos", {rows, kAny});
    step.sin = floats(sin, "sin", {rows, step.angles});
    step.slot = longs(slot, "slot", {rows});
    if (2 * step.angles > key_dim) refuse("more angles than pairs of dims");
    return {{rows}, [=](Kernels& kernels, const Extent& extent) {
                check_indices("slot", step.slot, extent.rows, step.store.slots());
                kernels.qkv_store(step, extent.rows);
            }};
}

}  // namespace

void add_rows(Classes& c) {
    using nb::arg;
    add_op(c, "linear", &linear, arg("x"), arg("weights"), arg("bias").none(), arg("residual").none(), arg("y"));
    add_op(c, "rms_norm", &rms_norm, arg("x"), arg("weight"), arg("eps"), arg("y"));
    add_op(c, "layer_norm", &layer_norm, arg("x"), arg("weight"), arg("bias").none(), arg("eps"), arg("y"));
    add_op(c, "activation", &activation, arg("kind"), arg("x"), arg("y"));
    add_op(c, "soft_cap", &soft_cap, arg("x"), arg("cap"), arg("y"));
    add_op(c, "add", &add, arg("x"), arg("z"), arg("y"));
    add_op(c, "gate", &gate, arg("kind"), arg("x"), arg("gate"), arg("up"), arg("y"));
    add_op(c, "embedding", &embedding, arg("ids"), arg("weights"), arg("outputs"), arg("scale"), arg("y"));
    add_op(c, "take_rows", &take_rows, arg("x"), arg("rows"), arg("y"));
    add_op(c, "table_rows", &table_rows, arg("ids"), arg("table"), arg("scale"), arg("y"));
    add_op(c, "mean_rows", &mean_rows, arg("x"), arg("first"), arg("last"), arg("y"));
    add_op(c, "unit_rows", &unit_rows, arg("x"), arg("y"));
    add_op(c, "argmax", &argmax, arg("x"), arg("y"));
    add_op(c, "draw", &draw, arg("x"), arg("temperature"), arg("top_k"), arg("top_p"), arg("min_p"), arg("uniforms"),
           arg("y"));
    add_op(c, "rope_angles", &rope_angles, arg("position"), arg("variant"), arg("frequencies"), arg("scale"), arg("cos"),
           arg("sin"));
    add_op(c, "rope", &rope, arg("x"), arg("cos"), arg("sin"), arg("pairing"), arg("y"));
    add_op(c, "qkv_store", &qkv_store, arg("x"), arg("q_norm").none(), arg("k_norm").none(), arg("eps"), arg("pairing"),
           arg("cos"), arg("sin"), arg("slot"), arg("keys"), arg("values"), arg("key_scales").none(),
           arg("value_scales").none(), arg("q"));
}

}  // namespace vivace
