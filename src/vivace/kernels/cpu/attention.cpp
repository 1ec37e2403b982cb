#include "attention.h"

#include <algorithm>

namespace vivace {
namespace {

// Working memory of one thread, kept between calls because long contexts need megabytes.
struct Scratch {
    std::vector<const void*> keys, values;
    std::vector<const float*> key_scales, value_scales;
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

// A panel of its own, within a piece of memory.
struct GatheredPanel {
    uint8_t* keys;
    uint8_t* values;
    float* scales;  // of 16 keys, then of 16 values; of Format::kI8 alone

    GatheredPanel(const KvStore& store, uint8_t* memory)
        : keys(memory),
          values(keys + store.key_dim * kPanel * bytes_of(store.format)),
          scales(reinterpret_cast<float*>(values + store.value_dim * kPanel * bytes_of(store.format))) {}

    static int64_t bytes(const KvStore& store) {
        const int64_t scales = store.format == Format::kI8 ? 2 * kPanel * static_cast<int64_t>(sizeof(float)) : 0;
        return (store.key_dim + store.value_dim) * kPanel * bytes_of(store.format) + scales;
    }
};

// Copy the units first .. last - 1 into a panel, the first of them to `lane`.
template <class Element>
void gather(const AttentionStep& step, const AttentionPart& part, int64_t first, int64_t last, int64_t lane,
            const GatheredPanel& panel) {
    const KvStore& store = step.store;
    auto *keys = reinterpret_cast<Element*>(panel.keys), *values = reinterpret_cast<Element*>(panel.values);
    for (int64_t unit = first; unit < last; ++unit, ++lane) {
        const int64_t slot = slot_of(step, *part.segment, unit), key_step = store.key_step();
        const Element* key = static_cast<const Element*>(store.keys) + store.key_at(slot, part.kv_head);
        const Element* value = static_cast<const Element*>(store.values) + store.value_at(slot, part.kv_head);
        for (int64_t d = 0; d < store.key_dim; ++d) keys[d * kPanel + lane] = key[d * key_step];
        std::copy_n(value, store.value_dim, values + lane * store.value_dim);
        if (store.format == Format::kI8) {
            panel.scales[lane] = store.key_scales[store.scale_at(slot, part.kv_head)];
            panel.scales[kPanel + lane] = store.value_scales[store.scale_at(slot, part.kv_head)];
        }
    }
}

// Point at the panels of the units that a part sees. Where the store holds no such panel it is gathered: of plain stores,
// and of the units that stand in no page order.
void list_panels(const AttentionStep& step, const AttentionPart& part, Scratch& scratch) {
    const KvStore& store = step.store;
    const int64_t base = part.base(step), begin = part.begin(step), end = part.end(step), size = bytes_of(store.format);
    const int64_t whole = store.is_panels ? std::min(end, part.segment->paged) : 0;  // panels that end up to here stand
    const bool has_scales = store.format == Format::kI8;
    scratch.keys.clear();
    scratch.values.clear();
    scratch.key_scales.clear();
    scratch.value_scales.clear();
    const int64_t gathered = (end - std::max(base, whole)) / kPanel + 2, panel_bytes = GatheredPanel::bytes(store);
    uint8_t* room = room_for(scratch.gathered, gathered * panel_bytes);
    for (int64_t unit = base; unit < end; unit += kPanel) {
        const int64_t last = std::min(end, unit + kPanel);
        if (last <= whole) {
            const int64_t slot = slot_of(step, *part.segment, unit);
            scratch.keys.push_back(static_cast<const uint8_t*>(store.keys) + store.key_at(slot, part.kv_head) * size);
            scratch.values.push_back(static_cast<const uint8_t*>(store.values) + store.value_at(slot, part.kv_head) * size);
            if (has_scales) {
                scratch.key_scales.push_back(store.key_scales + store.scale_at(slot, part.kv_head));
                scratch.value_scales.push_back(store.value_scales + store.scale_at(slot, part.kv_head));
            }
            continue;
        }
        const int64_t first = std::max(begin, unit);
        const GatheredPanel panel(store, room);
        const auto call = size == 4 ? &gather<uint32_t> : size == 2 ? &gather<uint16_t> : &gather<uint8_t>;
        call(step, part, first, last, first - unit, panel);
        scratch.keys.push_back(panel.keys);
        scratch.values.push_back(panel.values);
        scratch.key_scales.push_back(panel.scales);
        scratch.value_scales.push_back(panel.scales + kPanel);
        room += panel_bytes;
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
    block.score_stride = score_stride(block.units);
    block.keys = scratch.keys.data();
    block.values = scratch.values.data();
    block.key_scales = scratch.key_scales.data();
    block.value_scales = scratch.value_scales.data();
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
