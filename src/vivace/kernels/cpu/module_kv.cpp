// The operations on stores, as methods of Kernels. They run between steps and stand in no tape.
#include <nanobind/stl/string.h>

#include "kv.h"
#include "module.h"

namespace vivace {
namespace {

using Copy = void (*)(void*, int64_t, const int64_t*, const int64_t*, int64_t);

// Copy pages (or slots) within a tensor of them, (pieces, ...).
void copy(const Array& store, const Array& sources, const Array& targets, Copy call) {
    const int64_t count = size_of(sources, 0), pieces = size_of(store, 0);
    const int64_t* from = longs(sources, "sources", {kAny});
    const int64_t* to = longs(targets, "targets", {count});
    void* data = data_of(store, "store", store.dtype(), "anything", shape_of(store));
    check_indices("sources", from, count, pieces);
    check_indices("targets", to, count, pieces);
    const int64_t bytes = pieces ? static_cast<int64_t>(store.size() * store.itemsize()) / pieces : 0;
    nb::gil_scoped_release unlocked;
    call(data, bytes, from, to, count);
}

void kv_copy(Kernels&, const Array& store, const Array& sources, const Array& targets) {
    copy(store, sources, targets, &copy_in_order);
}

void kv_move(Kernels&, const Array& store, const Array& sources, const Array& targets) {
    copy(store, sources, targets, &copy_at_once);
}

void kv_rotate(Kernels& kernels, const Array& keys, const Array& slots, const Array& cos, const Array& sin,
               const std::string& pairing) {
    KvRotation rotation{};
    rotation.count = size_of(slots, 0);
    rotation.heads = size_of(keys, 1);
    rotation.dim = size_of(keys, 2);
    rotation.angles = size_of(cos, 1);
    rotation.format = format_of(keys);
    rotation.keys = data_of(keys, "keys", keys.dtype(), "float", {kAny, kAny, kAny});
    rotation.slots = longs(slots, "slots", {kAny});
    rotation.cos = floats(cos, "cos", {rotation.count, kAny});
    rotation.sin = floats(sin, "sin", {rotation.count, rotation.angles});
    rotation.is_interleaved = pairing == "interleaved";
    if (2 * rotation.angles > rotation.dim) refuse("more angles than pairs of dims");
    check_indices("slots", rotation.slots, rotation.count, size_of(keys, 0));
    nb::gil_scoped_release unlocked;
    kernels.rotate_keys(rotation);
}

}  // namespace

void add_kv(Classes& c) {
    c.kernels.def("kv_copy", &kv_copy, nb::arg("store"), nb::arg("sources"), nb::arg("targets"))
        .def("kv_move", &kv_move, nb::arg("store"), nb::arg("sources"), nb::arg("targets"))
        .def("kv_rotate", &kv_rotate, nb::arg("keys"), nb::arg("slots"), nb::arg("cos"), nb::arg("sin"),
             nb::arg("pairing"));
}

}  // namespace vivace
