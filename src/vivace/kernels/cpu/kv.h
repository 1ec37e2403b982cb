// Moving and turning what a store holds. Slots and pages are checked by the caller.
#pragma once

#include <cstdint>

#include "narrow.h"
#include "table.h"

namespace vivace {

// Copy pieces of `bytes` within a store one after another, so that a piece written by one pair may be read by a later one.
void copy_in_order(void* store, int64_t bytes, const int64_t* sources, const int64_t* targets, int64_t count);

// Copy pieces of `bytes` within a store; all reads happen before the first write.
void copy_at_once(void* store, int64_t bytes, const int64_t* sources, const int64_t* targets, int64_t count);

struct KvRotation {
    void* keys;  // (.., heads, dim)
    Format format;
    const int64_t* slots;  // (count)
    const float* cos;      // (count, angles)
    const float* sin;      // (count, angles)
    int64_t count, heads, dim, angles;
    bool is_interleaved;
};

// Rotate stored keys in place by further angles.
void rotate_keys(const KvRotation& rotation, const Table& table);

}  // namespace vivace
