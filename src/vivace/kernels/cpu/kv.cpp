#include "kv.h"

#include <cstring>
#include <vector>

namespace vivace {
namespace {

// Copy one piece of slots, key or value, all reads first. at(slot) is the first element of the piece.
template <class Element, class At>
void move(void* store, int64_t length, int64_t step, const int64_t* sources, const int64_t* targets, int64_t count,
          const At& at) {
    auto* base = static_cast<Element*>(store);
    std::vector<Element> read(static_cast<size_t>(count * length));
    Element* next = read.data();
    for (int64_t i = 0; i < count; ++i) {
        const Element* from = base + at(sources[i]);
        for (int64_t d = 0; d < length; ++d) *next++ = from[d * step];
    }
    next = read.data();
    for (int64_t i = 0; i < count; ++i) {
        Element* to = base + at(targets[i]);
        for (int64_t d = 0; d < length; ++d) to[d * step] = *next++;
    }
}

template <class Element>
void move_all(const KvStore& s, const int64_t* sources, const int64_t* targets, int64_t count) {
    for (int64_t head = 0; head < s.heads; ++head) {
        move<Element>(s.keys, s.key_dim, s.key_step(), sources, targets, count,
                      [&](int64_t slot) { return s.key_at(slot, head); });
        move<Element>(s.values, s.value_dim, 1, sources, targets, count,
                      [&](int64_t slot) { return s.value_at(slot, head); });
        if (s.format != Format::kI8) continue;
        for (float* scales : {s.key_scales, s.value_scales}) {
            move<float>(scales, 1, 1, sources, targets, count, [&](int64_t slot) { return s.scale_at(slot, head); });
        }
    }
}

}  // namespace

void write_key(const KvStore& store, int64_t slot, int64_t head, const float* key) {
    const int64_t at = store.key_at(slot, head);
    if (store.format == Format::kI8) {
        int8_t* codes = static_cast<int8_t*>(store.keys) + at;
        store.key_scales[store.scale_at(slot, head)] = to_i8(key, store.key_dim, codes, store.key_step());
        return;
    }
    if (!store.is_panels) return narrow(key, store.key_dim, store.format, store.keys, at);
    for (int64_t d = 0; d < store.key_dim; ++d) narrow(key + d, 1, store.format, store.keys, at + d * kPanel);
}

void write_value(const KvStore& store, int64_t slot, int64_t head, const float* value) {
    const int64_t at = store.value_at(slot, head);
    if (store.format != Format::kI8) return narrow(value, store.value_dim, store.format, store.values, at);
    int8_t* codes = static_cast<int8_t*>(store.values) + at;
    store.value_scales[store.scale_at(slot, head)] = to_i8(value, store.value_dim, codes, 1);
}

void read_key(const KvStore& store, int64_t slot, int64_t head, float* key) {
    const int64_t at = store.key_at(slot, head);
    if (store.format == Format::kI8) {
        const int8_t* codes = static_cast<const int8_t*>(store.keys) + at;
        const float scale = store.key_scales[store.scale_at(slot, head)];
        for (int64_t d = 0; d < store.key_dim; ++d) key[d] = static_cast<float>(codes[d * store.key_step()]) * scale;
        return;
    }
    if (!store.is_panels) return widen(store.keys, at, store.key_dim, store.format, key);
    for (int64_t d = 0; d < store.key_dim; ++d) widen(store.keys, at + d * kPanel, 1, store.format, key + d);
}

void copy_in_order(void* store, int64_t bytes, const int64_t* sources, const int64_t* targets, int64_t count) {
    auto* base = static_cast<uint8_t*>(store);
    for (int64_t i = 0; i < count; ++i) std::memmove(base + targets[i] * bytes, base + sources[i] * bytes, bytes);
}

void move_slots(const KvStore& store, const int64_t* sources, const int64_t* targets, int64_t count) {
    switch (bytes_of(store.format)) {
        case 4: return move_all<uint32_t>(store, sources, targets, count);
        case 2: return move_all<uint16_t>(store, sources, targets, count);
        default: return move_all<uint8_t>(store, sources, targets, count);
    }
}

void rotate_keys(const KvRotation& r, const Table& table) {
    std::vector<float> key(static_cast<size_t>(r.store.key_dim));
    for (int64_t i = 0; i < r.count; ++i) {
        for (int64_t head = 0; head < r.store.heads; ++head) {
            read_key(r.store, r.slots[i], head, key.data());
            table.rope_head(key.data(), r.cos + i * r.angles, r.sin + i * r.angles, r.angles, r.store.key_dim,
                            r.is_interleaved, key.data());
            write_key(r.store, r.slots[i], head, key.data());
        }
    }
}

}  // namespace vivace
