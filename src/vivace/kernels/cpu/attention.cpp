#include "attention.h"

#include <algorithm>

namespace vivace {
namespace {

// Working memory of one thread, kept between calls because long contexts need megabytes.
struct Scratch {
    std::vector<const void*> keys, values;
    std::vector<uint8_t> gathered;
    std::vector<float> scores;
};

// Memory for `count` elements. It never shrinks: growing again would clear it.
template <class T>
T* room_for(std::vector<T>& memory, int64_t count) {
    if (static_cast<size_t>(count) > memory.size()) memory.resize(static_cast<size_t>(count));
    return memory.data();
}

int64_t first_seen(const AttentionStep& step, const Segment& segment, int64_t row) {
    return std::max<int64_t>(0, segment.position + row - step.behind);
}

int64_t last_seen(const AttentionStep& step, const Segment& segment, int64_t row) {
    return std::min(segment.units, segment.position + row + 1 + step.ahead);
}

int64_t slot_of(const AttentionStep& step, const Segment& segment, int64_t unit) {
    if (unit >= segment.paged) return step.slots[static_cast<size_t>(segment.slot_begin + unit - segment.paged)];
    return segment.pages[unit / step.store.page_size] * step.store.page_size + unit % step.store.page_size;
}

// Copy the units first .. last - 1 into a panel, the first of them to `lane`.
template <class Element>
void gather(const AttentionStep& step, const AttentionPart& part, int64_t first, int64_t last, int64_t lane, void* keys,
            void* values) {
    const KvStore& store = step.store;
    for (int64_t unit = first; unit < last; ++unit, ++lane) {
        const int64_t slot = slot_of(step, *part.segment, unit), key_step = store.key_step();
        const Element* key = static_cast<const Element*>(store.keys) + store.key_at(slot, part.kv_head);
        const Element* value = static_cast<const Element*>(store.values) + store.value_at(slot, part.kv_head);
        for (int64_t d = 0; d < store.key_dim; ++d) static_cast<Element*>(keys)[d * kPanel + lane] = key[d * key_step];
        std::copy_n(value, store.value_dim, static_cast<Element*>(values) + lane * store.value_dim);
    }
}

// Point at the panels of the units that a part sees. Where the store holds no such panel it is gathered: of plain stores,
// and of the units that stand in no page order.
void list_panels(const AttentionStep& step, const AttentionPart& part, Scratch& scratch) {
    const KvStore& store = step.store;
    const int64_t base = part.base(step), begin = part.begin(step), end = part.end(step), size = bytes_of(store.format);
    const int64_t whole = store.is_panels ? std::min(end, part.segment->paged) : 0;  // panels that end up to here stand
    const int64_t key_bytes = store.key_dim * kPanel * size, value_bytes = store.value_dim * kPanel * size;
    scratch.keys.clear();
    scratch.values.clear();
    const int64_t gathered = (end - std::max(base, whole)) / kPanel + 2;
    uint8_t* room = room_for(scratch.gathered, gathered * (key_bytes + value_bytes));
    for (int64_t unit = base; unit < end; unit += kPanel) {
        const int64_t last = std::min(end, unit + kPanel);
        if (last <= whole) {
            const int64_t slot = slot_of(step, *part.segment, unit);
            scratch.keys.push_back(static_cast<const uint8_t*>(store.keys) + store.key_at(slot, part.kv_head) * size);
            scratch.values.push_back(static_cast<const uint8_t*>(store.values) + store.value_at(slot, part.kv_head) * size);
            continue;
        }
        const int64_t first = std::max(begin, unit);
        const auto call = store.format == Format::kF32 ? &gather<uint32_t> : &gather<uint16_t>;
        call(step, part, first, last, first - unit, room, room + key_bytes);
        scratch.keys.push_back(room);
        scratch.values.push_back(room + key_bytes);
        room += key_bytes + value_bytes;
    }
}

void add_query(const AttentionStep& step, const AttentionPart& part, int64_t row, int64_t head, AttentionBlock& block) {
    const Segment& segment = *part.segment;
    const int64_t place = (segment.first_row + row) * step.heads + head;
    const int i = block.query_count++;
    block.queries[i] = step.q + place * step.store.key_dim;
    block.outputs[i] = step.y + place * step.store.value_dim;
    block.sinks[i] = step.sinks ? step.sinks + head : nullptr;
    block.first[i] = first_seen(step, segment, row) - part.base(step);
    block.last[i] = last_seen(step, segment, row) - part.base(step);
}

}  // namespace

int64_t AttentionPart::begin(const AttentionStep& step) const { return first_seen(step, *segment, first); }
int64_t AttentionPart::end(const AttentionStep& step) const { return last_seen(step, *segment, first + count - 1); }
int64_t AttentionPart::base(const AttentionStep& step) const { return begin(step) / kPanel * kPanel; }

int64_t AttentionPart::cost(const AttentionStep& step) const {
    const int64_t queries = count * (step.heads / step.store.heads);
    return (end(step) - begin(step)) * (step.store.key_dim + step.store.value_dim) * (queries + 2);
}

std::vector<AttentionPart> attention_parts(const AttentionStep& step) {
    const int64_t group = step.heads / step.store.heads;
    const int64_t most_rows = std::max<int64_t>(1, kBlockQueries / group);
    std::vector<AttentionPart> parts;
    for (const auto& segment : step.segments)
        for (int64_t first = 0; first < segment.row_count; first += most_rows)
            for (int64_t kv_head = 0; kv_head < step.store.heads; ++kv_head)
                parts.push_back({&segment, first, std::min(most_rows, segment.row_count - first), kv_head});
    return parts;
}

void run_attention_part(const AttentionStep& step, const AttentionPart& part, const Table& table) {
    thread_local Scratch scratch;
    list_panels(step, part, scratch);
    AttentionBlock block;
    block.units = part.end(step) - part.base(step);
    block.key_dim = step.store.key_dim;
    block.value_dim = step.store.value_dim;
    block.format = step.store.format;
    block.scale = step.scale;
    block.soft_cap = step.soft_cap;
    block.score_stride = (block.units + kPanel - 1) / kPanel * kPanel;
    block.keys = scratch.keys.data();
    block.values = scratch.values.data();
    block.scores = room_for(scratch.scores, kBlockQueries * block.score_stride);
    // More heads than a block holds share one key head only in extreme models: then the row is computed in several blocks.
    const int64_t group = step.heads / step.store.heads;
    block.query_count = 0;
    for (int64_t row = part.first; row < part.first + part.count; ++row) {
        for (int64_t head = part.kv_head * group; head < (part.kv_head + 1) * group; ++head) {
            if (block.query_count == kBlockQueries) {
                table.attention_block(block);
                block.query_count = 0;
            }
            add_query(step, part, row, head, block);
        }
    }
    table.attention_block(block);
}

}  // namespace vivace
