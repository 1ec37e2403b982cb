// Checks of tensors at the boundary to Python: what passes them cannot be read or written out of bounds.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <optional>
#include <string>
#include <vector>

#include "narrow.h"

namespace vivace {

namespace nb = nanobind;

using Array = nb::ndarray<>;
using MaybeArray = std::optional<Array>;

constexpr int64_t kAny = -1;  // in an expected shape: any size

inline int64_t size_of(const Array& array, size_t axis) {
    return axis < array.ndim() ? static_cast<int64_t>(array.shape(axis)) : kAny;
}

inline bool is_contiguous(const Array& array) {
    int64_t expected = 1;
    for (size_t i = array.ndim(); i-- > 0;) {
        if (array.shape(i) > 1 && array.stride(i) != expected) return array.size() == 0;
        expected *= static_cast<int64_t>(array.shape(i));
    }
    return true;
}

inline bool has_shape(const Array& array, const std::vector<int64_t>& shape) {
    if (array.ndim() != shape.size()) return false;
    for (size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] != kAny && size_of(array, i) != shape[i]) return false;
    }
    return true;
}

inline std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "(";
    for (size_t i = 0; i < shape.size(); ++i) {
        text += (i ? ", " : "") + (shape[i] == kAny ? std::string("any") : std::to_string(shape[i]));
    }
    return text + ")";
}

// The data of a contiguous CPU tensor of this type and shape; anything else raises ValueError and names `name`.
inline void* data_of(const Array& array, const char* name, nb::dlpack::dtype dtype, const char* dtype_name,
                     const std::vector<int64_t>& shape) {
    const bool is_type = array.dtype() == dtype, is_cpu = array.device_type() == nb::device::cpu::value;
    if (is_type && is_cpu && is_contiguous(array) && has_shape(array, shape)) return array.data();
    std::vector<int64_t> actual(array.ndim());
    for (size_t i = 0; i < actual.size(); ++i) actual[i] = size_of(array, i);
    const std::string problem = !is_type ? std::string(" is not ") + dtype_name
                                : !is_cpu ? " is not on the CPU"
                                : !is_contiguous(array) ? " is not contiguous" : " has the wrong shape";
    const std::string message = name + problem + ": shape " + shape_text(actual) + ", expected contiguous " +
                                dtype_name + " " + shape_text(shape) + " on the CPU";
    throw nb::value_error(message.c_str());
}

inline float* floats(const Array& array, const char* name, const std::vector<int64_t>& shape) {
    return static_cast<float*>(data_of(array, name, nb::dtype<float>(), "float32", shape));
}

inline float* floats(const MaybeArray& array, const char* name, const std::vector<int64_t>& shape) {
    return array ? floats(*array, name, shape) : nullptr;
}

inline double* doubles(const Array& array, const char* name, const std::vector<int64_t>& shape) {
    return static_cast<double*>(data_of(array, name, nb::dtype<double>(), "float64", shape));
}

inline int64_t* longs(const Array& array, const char* name, const std::vector<int64_t>& shape) {
    return static_cast<int64_t*>(data_of(array, name, nb::dtype<int64_t>(), "int64", shape));
}

inline int32_t* ints(const Array& array, const char* name, const std::vector<int64_t>& shape) {
    return static_cast<int32_t*>(data_of(array, name, nb::dtype<int32_t>(), "int32", shape));
}

// The format of a store or of weights; raises ValueError for any other type.
inline Format format_of(const Array& array, const char* name = "keys") {
    const auto type = array.dtype();
    if (type == nb::dtype<float>()) return Format::kF32;
    if (type.bits == 16 && type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat)) return Format::kBf16;
    if (type.bits == 16 && type.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float)) return Format::kF16;
    const std::string message = std::string(name) + " are not float32, bfloat16 or float16";
    throw nb::value_error(message.c_str());
}

// A tensor as rows of `inner` vectors of `width`: (rows, ..., width).
struct RowShape {
    int64_t rows, inner, width;

    int64_t per_row() const { return inner * width; }
};

inline RowShape rows_of(const Array& array) {
    RowShape shape{array.ndim() > 1 ? size_of(array, 0) : 1, 1, array.ndim() ? size_of(array, array.ndim() - 1) : 1};
    for (size_t axis = 1; axis + 1 < array.ndim(); ++axis) shape.inner *= size_of(array, axis);
    return shape;
}

inline std::vector<int64_t> shape_of(const Array& array) {
    std::vector<int64_t> shape(array.ndim());
    for (size_t axis = 0; axis < shape.size(); ++axis) shape[axis] = size_of(array, axis);
    return shape;
}

}  // namespace vivace
