#include "kv.h"

#include <cstring>
#include <vector>

namespace vivace {

void copy_in_order(void* store, int64_t bytes, const int64_t* sources, const int64_t* targets, int64_t count) {
    auto* base = static_cast<uint8_t*>(store);
    for (int64_t i = 0; i < count; ++i) std::memmove(base + targets[i] * bytes, base + sources[i] * bytes, bytes);
}

void copy_at_once(void* store, int64_t bytes, const int64_t* sources, const int64_t* targets, int64_t count) {
    auto* base = static_cast<uint8_t*>(store);
    std::vector<uint8_t> read(static_cast<size_t>(count * bytes));
    for (int64_t i = 0; i < count; ++i) std::memcpy(read.data() + i * bytes, base + sources[i] * bytes, bytes);
    for (int64_t i = 0; i < count; ++i) std::memcpy(base + targets[i] * bytes, read.data() + i * bytes, bytes);
}

void rotate_keys(const KvRotation& r, const Table& table) {
    std::vector<float> key(static_cast<size_t>(r.dim));
    for (int64_t i = 0; i < r.count; ++i) {
        for (int64_t head = 0; head < r.heads; ++head) {
            const int64_t offset = (r.slots[i] * r.heads + head) * r.dim;
            widen(r.keys, offset, r.dim, r.format, key.data());
            table.rope_head(key.data(), r.cos + i * r.angles, r.sin + i * r.angles, r.angles, r.dim, r.is_interleaved,
                            key.data());
            narrow(key.data(), r.dim, r.format, r.keys, offset);
        }
    }
}

}  // namespace vivace
