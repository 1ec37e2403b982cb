// The parts of the Python module: each operation is one function that checks its tensors and returns what to run.
//
// `add_op` makes it a method twice, under one name: of Kernels, where it runs at once, and of Tape, where it is added to
// the recorded step. A tape keeps the tensors alive.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "arrays.h"
#include "kernels.h"
#include "op.h"
#include "tape.h"

namespace vivace {

// A tape, and the tensors that its operations read and write.
struct KeptTape {
    explicit KeptTape(Kernels& kernels) : tape(kernels) {}

    template <class T>
    void keep(const T& argument) {
        if constexpr (std::is_same_v<T, Array>) arrays.push_back(argument);
        if constexpr (std::is_same_v<T, MaybeArray>) {
            if (argument) arrays.push_back(*argument);
        }
    }

    Tape tape;
    std::vector<Array> arrays;
};

struct Classes {
    nb::class_<Kernels> kernels;
    nb::class_<KeptTape> tape;
};

template <class... Args, class... Names>
void add_op(Classes& classes, const char* name, Op (*make)(Args...), const Names&... names) {
    classes.kernels.def(
        name,
        [make](Kernels& kernels, Args... args) {
            const Op op = make(std::forward<Args>(args)...);
            nb::gil_scoped_release unlocked;
            op.run(kernels, op.whole);
        },
        names...);
    classes.tape.def(
        name,
        [make](KeptTape& kept, int64_t group, Args... args) {
            (kept.keep(static_cast<const std::remove_reference_t<Args>&>(args)), ...);
            kept.tape.add(group, make(std::forward<Args>(args)...));
        },
        nb::arg("group"), names...);
}

[[noreturn]] inline void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// Raises ValueError unless every one of the first `count` indices is 0 .. limit - 1.
template <class Index>
void check_indices(const char* name, const Index* indices, int64_t count, int64_t limit) {
    for (int64_t i = 0; i < count; ++i) {
        if (indices[i] < 0 || indices[i] >= limit) {
            refuse(std::string(name) + " holds " + std::to_string(indices[i]) + ", expected 0 to " +
                   std::to_string(limit - 1));
        }
    }
}

// The tensors of a store; scales only where keys and values are bytes.
struct StoreArrays {
    const Array& keys;
    const Array& values;
    const MaybeArray& key_scales;
    const MaybeArray& value_scales;
};

// A store as its tensors show it: five dims of keys are panels. Raises ValueError where they do not fit together.
KvStore store_of(const StoreArrays& arrays);

// Weights that are no codes as their tensor shows them. Raises ValueError where the shape is another.
Panels panels_of(const Array& weights, int64_t inputs, int64_t outputs);

// Quantized weights of a linear map and the tensors that hold them.
struct Weights {
    QuantLinear linear;
    std::vector<Array> data;
};
using SharedWeights = std::shared_ptr<Weights>;

void add_rows(Classes& classes);
void add_attention(Classes& classes);
void add_kv(Classes& classes);

// Also the class of the weights of experts.
void add_experts(nb::module_& module, Classes& classes);

// Also the classes of quantized weights.
void add_quant(nb::module_& module, Classes& classes);

}  // namespace vivace
