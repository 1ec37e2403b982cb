// The operations on stores, as methods of Kernels. They run between steps and stand in no tape.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "kv.h"
#include "module.h"

namespace vivace {
namespace {

void kv_copy(Kernels&, const Array& keys, const Array& values, const MaybeArray& key_scales,
             const MaybeArray& value_scales, const Array& sources, const Array& targets) {
    const KvStore store = store_of({keys, values, key_scales, value_scales});
    const int64_t count = size_of(sources, 0), vectors = store.heads * store.page_size, size = bytes_of(store.format);
    const int64_t* from = longs(sources, "sources", {kAny});
    const int64_t* to = longs(targets, "targets", {count});
    check_indices("sources", from, count, store.pages);
    check_indices("targets", to, count, store.pages);
    nb::gil_scoped_release unlocked;
    copy_in_order(store.keys, vectors * store.key_dim * size, from, to, count);
    copy_in_order(store.values, vectors * store.value_dim * size, from, to, count);
    if (store.format != Format::kI8) return;
    for (float* scales : {store.key_scales, store.value_scales}) {
        copy_in_order(scales, vectors * static_cast<int64_t>(sizeof(float)), from, to, count);
    }
}

void kv_move(Kernels&, const Array& keys, const Array& values, const MaybeArray& key_scales,
             const MaybeArray& value_scales, const Array& sources, const Array& targets) {
    const KvStore store = store_of({keys, values, key_scales, value_scales});
    const int64_t count = size_of(sources, 0);
    const int64_t* from = longs(sources, "sources", {kAny});
    const int64_t* to = longs(targets, "targets", {count});
    check_indices("sources", from, count, store.slots());
    check_indices("targets", to, count, store.slots());
    nb::gil_scoped_release unlocked;
    move_slots(store, from, to, count);
}

void kv_rotate(Kernels& kernels, const Array& keys, const Array& values, const MaybeArray& key_scales,
               const MaybeArray& value_scales, const Array& slots, const Array& cos, const Array& sin,
               const std::string& pairing) {
    KvRotation rotation{};
    rotation.store = store_of({keys, values, key_scales, value_scales});
    rotation.count = size_of(slots, 0);
    rotation.angles = size_of(cos, 1);
    rotation.slots = longs(slots, "slots", {kAny});
    rotation.cos = floats(cos, "cos", {rotation.count, kAny});
    rotation.sin = floats(sin, "sin", {rotation.count, rotation.angles});
    rotation.is_interleaved = pairing == "interleaved";
    if (2 * rotation.angles > rotation.store.key_dim) refuse("more angles than pairs of dims");
    check_indices("slots", rotation.slots, rotation.count, rotation.store.slots());
    nb::gil_scoped_release unlocked;
    kernels.rotate_keys(rotation);
}

}  // namespace

KvStore store_of(const StoreArrays& arrays) {
    const Array &keys = arrays.keys, &values = arrays.values;
    KvStore store{};
    store.format = keys.dtype() == nb::dtype<int8_t>() ? Format::kI8 : format_of(keys);
    store.is_panels = keys.ndim() == 5;
    store.pages = size_of(keys, 0);
    if (store.is_panels) {
        store.heads = size_of(keys, 1);
        store.page_size = size_of(keys, 2) * kPanel;
        store.key_dim = size_of(keys, 3);
        store.keys = data_of(keys, "keys", keys.dtype(), "float", {kAny, kAny, kAny, kAny, kPanel});
    } else {
        store.page_size = size_of(keys, 1);
        store.heads = size_of(keys, 2);
        store.key_dim = size_of(keys, 3);
        store.keys = data_of(keys, "keys", keys.dtype(), "float", {kAny, kAny, kAny, kAny});
    }
    store.value_dim = size_of(values, 3);
    const int64_t second = store.is_panels ? store.heads : store.page_size;
    const int64_t third = store.is_panels ? store.page_size : store.heads;
    store.values = data_of(values, "values", keys.dtype(), "like the keys", {store.pages, second, third, kAny});
    if (store.format == Format::kI8) {
        if (!arrays.key_scales || !arrays.value_scales) refuse("keys and values of bytes come with their scales");
        store.key_scales = floats(arrays.key_scales, "key_scales", {store.pages, second, third});
        store.value_scales = floats(arrays.value_scales, "value_scales", {store.pages, second, third});
    } else if (arrays.key_scales || arrays.value_scales) {
        refuse("only keys and values of bytes come with scales");
    }
    return store;
}

void add_kv(Classes& c) {
    using nb::arg;
    c.kernels
        .def("kv_copy", &kv_copy, arg("keys"), arg("values"), arg("key_scales").none(), arg("value_scales").none(),
             arg("sources"), arg("targets"))
        .def("kv_move", &kv_move, arg("keys"), arg("values"), arg("key_scales").none(), arg("value_scales").none(),
             arg("sources"), arg("targets"))
        .def("kv_rotate", &kv_rotate, arg("keys"), arg("values"), arg("key_scales").none(), arg("value_scales").none(),
             arg("slots"), arg("cos"), arg("sin"), arg("pairing"));
}

}  // namespace vivace
