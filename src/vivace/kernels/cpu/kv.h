// Where a store keeps keys and values; moving and turning them. Slots and pages are checked by the caller.
#pragma once

#include <cstdint>

#include "narrow.h"
#include "table.h"

namespace vivace {

// A plain store keeps each slot's heads side by side: keys (pages, page_size, heads, key_dim), values alike. A store of
// panels keeps each head of a page side by side: keys (pages, heads, page_size / 16, key_dim, 16), so that one vector
// holds one dim of 16 keys, and values (pages, heads, page_size, value_dim). Of bytes there are scales beside them: in a
// plain store (pages, page_size, heads), in panels (pages, heads, page_size).
struct KvStore {
    void* keys;
    void* values;
    float* key_scales;    // of Format::kI8, else null
    float* value_scales;  // the same
    Format format;
    bool is_panels;
    int64_t pages, page_size, heads, key_dim, value_dim;

    int64_t slots() const { return pages * page_size; }
    int64_t key_step() const { return is_panels ? kPanel : 1; }  // elements between two dims of a key

    // Elements before the first one of a slot's key, and of its value.
    int64_t key_at(int64_t slot, int64_t head) const {
        if (!is_panels) return (slot * heads + head) * key_dim;
        const int64_t page = slot / page_size, unit = slot % page_size;
        return ((page * heads + head) * page_size + unit / kPanel * kPanel) * key_dim + unit % kPanel;
    }
    int64_t value_at(int64_t slot, int64_t head) const {
        if (!is_panels) return (slot * heads + head) * value_dim;
        return ((slot / page_size * heads + head) * page_size + slot % page_size) * value_dim;
    }
    int64_t scale_at(int64_t slot, int64_t head) const {
        if (!is_panels) return slot * heads + head;
        return (slot / page_size * heads + head) * page_size + slot % page_size;
    }
};

// Round a key or value of float32 into its slot, or widen a key from there. key (key_dim), value (value_dim)
void write_key(const KvStore& store, int64_t slot, int64_t head, const float* key);
void write_value(const KvStore& store, int64_t slot, int64_t head, const float* value);
void read_key(const KvStore& store, int64_t slot, int64_t head, float* key);

// Copy pieces of `bytes` within a store one after another, so that a piece written by one pair may be read by a later one.
void copy_in_order(void* store, int64_t bytes, const int64_t* sources, const int64_t* targets, int64_t count);

// Copy slots within a store; all reads happen before the first write.
void move_slots(const KvStore& store, const int64_t* sources, const int64_t* targets, int64_t count);

struct KvRotation {
    KvStore store;
    const int64_t* slots;  // (count)
    const float* cos;      // (count, angles)
    const float* sin;      // (count, angles)
    int64_t count, angles;
    bool is_interleaved;
};

// Rotate stored keys in place by further angles.
void rotate_keys(const KvRotation& rotation, const Table& table);

}  // namespace vivace
