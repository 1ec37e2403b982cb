#include "attention.h"

#include <algorithm>

namespace vivace {
namespace {

constexpr int64_t kStretchPanels = kStretchUnits / kPanel;

// Working memory of one thread, kept between calls.
struct Scratch {
    const void *keys[kStretchPanels], *values[kStretchPanels];
    const float *key_scales[kStretchPanels], *value_scales[kStretchPanels];
    std::vector<uint8_t> gathered;
    std::vector<float> scores, outputs;
    std::vector<AttentionSum> sums;
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

// Point at the panels of the units begin .. end - 1, the first of which stands in panel 0. Where the store holds no
// such panel it is gathered: of plain stores, and of the units that stand in no page order.
void list_panels(const AttentionStep& step, const AttentionPart& part, int64_t begin, int64_t end, Scratch& scratch) {
    const KvStore& store = step.store;
    const int64_t size = bytes_of(store.format), panel_bytes = GatheredPanel::bytes(store);
    const int64_t whole = store.is_panels ? part.segment->paged : 0;  // panels that end up to here stand
    uint8_t* room = room_for(scratch.gathered, kStretchPanels * panel_bytes);
    int panel = 0;
    for (int64_t unit = begin / kPanel * kPanel; unit < end; unit += kPanel, ++panel) {
        const int64_t last = std::min(end, unit + kPanel);
        if (last <= whole) {
            const int64_t slot = slot_of(step, *part.segment, unit);
            const int64_t key = store.key_at(slot, part.kv_head), value = store.value_at(slot, part.kv_head);
            scratch.keys[panel] = static_cast<const uint8_t*>(store.keys) + key * size;
            scratch.values[panel] = static_cast<const uint8_t*>(store.values) + value * size;
            if (store.format == Format::kI8) {
                scratch.key_scales[panel] = store.key_scales + store.scale_at(slot, part.kv_head);
                scratch.value_scales[panel] = store.value_scales + store.scale_at(slot, part.kv_head);
            }
            continue;
        }
        const GatheredPanel gathered(store, room);
        const auto call = size == 4 ? &gather<uint32_t> : size == 2 ? &gather<uint16_t> : &gather<uint8_t>;
        const int64_t first = std::max(begin, unit);
        call(step, part, first, last, first - unit, gathered);
        scratch.keys[panel] = gathered.keys;
        scratch.values[panel] = gathered.values;
        scratch.key_scales[panel] = gathered.scales;
        scratch.value_scales[panel] = gathered.scales + kPanel;
        room += panel_bytes;
    }
}

// A query of a part and the units that it sees.
struct Query {
    int64_t place;  // of all queries of the step: row * heads + head
    int64_t head, unit, first, last;

    Query(const AttentionStep& step, const AttentionPart& part, int64_t number) {
        const int64_t group = step.heads / step.store.heads, row = part.first + number / group;
        head = part.kv_head * group + number % group;
        place = (part.segment->first_row + row) * step.heads + head;
        unit = part.segment->position + row;
        first = first_seen(step, *part.segment, row);
        last = last_seen(step, *part.segment, row);
    }

    int64_t first_stretch() const { return first / kStretchUnits; }
    bool sees(int64_t stretch) const { return first_stretch() <= stretch && last > stretch * kStretchUnits; }
};

void add_query(const AttentionStep& step, const Query& query, int64_t base, float* output, AttentionBlock& block) {
    const int i = block.query_count++;
    block.queries[i] = step.q + query.place * step.store.key_dim;
    block.sums[i].output = output;
    block.biases[i] = step.biases ? step.biases + query.head * (2 * step.bias_reach + 1) + step.bias_reach : nullptr;
    block.slopes[i] = step.slopes ? step.slopes[query.head] : 0.0f;
    block.at[i] = query.unit - base;
    block.first[i] = std::max<int64_t>(0, query.first - base);
    block.last[i] = std::min(block.units, query.last - base);
}

// The keys that are read next, from `unit` on of a part, where they stand in panels.
void list_next_keys(const AttentionStep& step, const AttentionPart& part, int64_t unit, AttentionBlock& block) {
    const int64_t last = step.store.is_panels ? std::min(part.end(step), part.segment->paged) : 0;
    for (int64_t i = 0; i < kNextPanels; ++i, unit += kPanel) {
        block.next_keys[i] = nullptr;
        if (unit + kPanel > last) continue;
        const int64_t at = step.store.key_at(slot_of(step, *part.segment, unit), part.kv_head);
        block.next_keys[i] = static_cast<const uint8_t*>(step.store.keys) + at * bytes_of(step.store.format);
    }
}

// What the queries of a part take from one stretch: query i's sum goes to sums[i], and its output to the query's place
// in y if this is its first stretch, else to outputs (queries, value_dim). `next`: the part that this thread is likely to
// compute after this one, or null.
void run_stretch(const AttentionStep& step, const AttentionPart& part, const AttentionPart* next, int64_t stretch,
                 AttentionSum* sums, float* outputs, Scratch& scratch, const Table& table) {
    const int64_t begin = std::max(part.begin(step), stretch * kStretchUnits);
    const int64_t end = std::min(part.end(step), (stretch + 1) * kStretchUnits), base = begin / kPanel * kPanel;
    list_panels(step, part, begin, end, scratch);
    AttentionBlock block;
    block.bias_reach = step.bias_reach;
    block.has_slopes = step.slopes != nullptr;
    block.keys = scratch.keys;
    block.values = scratch.values;
    block.key_scales = scratch.key_scales;
    block.value_scales = scratch.value_scales;
    block.format = step.store.format;
    block.units = end - base;
    block.key_dim = step.store.key_dim;
    block.value_dim = step.store.value_dim;
    block.scale = step.scale;
    block.soft_cap = step.soft_cap;
    block.score_stride = score_stride(kStretchUnits);
    block.scores = room_for(scratch.scores, kBlockQueries * block.score_stride);
    block.query_count = 0;
    int64_t numbers[kBlockQueries];
    if (next && end == part.end(step)) {
        list_next_keys(step, *next, next->begin(step) / kPanel * kPanel, block);
    } else {
        list_next_keys(step, part, end, block);
    }
    const auto compute = [&] {
        if (block.query_count > 0) table.attention_block(block);
        for (int i = 0; i < block.query_count; ++i) sums[numbers[i]] = block.sums[i];
        block.query_count = 0;
    };
    for (int64_t number = 0; number < part.queries(step); ++number) {
        const Query query(step, part, number);
        if (!query.sees(stretch)) continue;
        if (block.query_count == kBlockQueries) compute();
        numbers[block.query_count] = number;
        const bool is_first = stretch == query.first_stretch();
        float* output = is_first ? step.y + query.place * block.value_dim : outputs + number * block.value_dim;
        add_query(step, query, base, output, block);
    }
    compute();
}

// One stretch after the other.
void run_part(const AttentionStep& step, const AttentionPart& part, const AttentionPart* next, Scratch& scratch,
              const Table& table) {
    const int64_t queries = part.queries(step), value_dim = step.store.value_dim;
    AttentionSum* sums = room_for(scratch.sums, 2 * queries);
    AttentionSum* later = sums + queries;
    float* outputs = room_for(scratch.outputs, queries * value_dim);
    const int64_t first = part.first_stretch(step), last = first + part.stretches(step);
    for (int64_t stretch = first; stretch < last; ++stretch) {
        run_stretch(step, part, next, stretch, stretch == first ? sums : later, outputs, scratch, table);
        for (int64_t i = 0; i < queries && stretch > first; ++i) {
            const Query query(step, part, i);
            if (!query.sees(stretch)) continue;
            if (stretch == query.first_stretch()) {
                sums[i] = later[i];
            } else {
                table.attention_merge(sums[i], later[i], value_dim);
            }
        }
    }
    for (int64_t i = 0; i < queries; ++i) {
        table.attention_finish(sums[i], step.sinks ? step.sinks + Query(step, part, i).head : nullptr, value_dim);
    }
}

}  // namespace

int64_t AttentionPart::begin(const AttentionStep& step) const { return first_seen(step, *segment, first); }
int64_t AttentionPart::end(const AttentionStep& step) const { return last_seen(step, *segment, first + count - 1); }

int64_t AttentionPart::cost(const AttentionStep& step) const {
    return (end(step) - begin(step)) * (step.store.key_dim + step.store.value_dim) * (queries(step) + 2);
}

AttentionPlan::AttentionPlan(const AttentionStep& step, int threads) : step_(step) {
    const int64_t group = step.heads / step.store.heads;
    const int64_t most_rows = std::max<int64_t>(1, kBlockQueries / group);
    std::vector<AttentionPart> parts;
    for (const auto& segment : step.segments)
        for (int64_t first = 0; first < segment.row_count; first += most_rows)
            for (int64_t kv_head = 0; kv_head < step.store.heads; ++kv_head)
                parts.push_back({&segment, first, std::min(most_rows, segment.row_count - first), kv_head});
    for (const auto& part : parts) cost_ += part.cost(step);
    split(parts, threads);
}

void AttentionPlan::split(const std::vector<AttentionPart>& parts, int64_t threads) {
    constexpr int64_t kShares = 4;  // a part up to a thread's work by this is left whole
    thread_local std::vector<AttentionSum> all_sums;
    int64_t sum_count = 0;
    for (const auto& part : parts) {
        const int64_t stretches = part.stretches(step_);
        if (threads > 1 && stretches > 1 && part.cost(step_) * threads * kShares > cost_) {
            split_.push_back({part, nullptr});
            sum_count += stretches * part.queries(step_);
        } else {
            items_.push_back({part, nullptr, 0});
        }
    }
    thread_local std::vector<float> all_outputs;
    AttentionSum* sums = room_for(all_sums, sum_count);
    float* outputs = room_for(all_outputs, sum_count * step_.store.value_dim);
    for (auto& one : split_) {
        one.sums = sums;
        const int64_t first = one.part.first_stretch(step_), stretches = one.part.stretches(step_);
        for (int64_t stretch = first; stretch < first + stretches; ++stretch) {
            items_.push_back({one.part, one.sums, stretch});
        }
        for (int64_t i = 0; i < stretches * one.part.queries(step_); ++i, outputs += step_.store.value_dim) {
            (sums++)->output = outputs;
        }
    }
}

void AttentionPlan::run_item(int64_t item, const Table& table) const {
    thread_local Scratch scratch;
    const Item& it = items_[static_cast<size_t>(item)];
    if (!it.sums) {
        const auto after = static_cast<size_t>(item) + 1;
        return run_part(step_, it.part, after < items_.size() ? &items_[after].part : nullptr, scratch, table);
    }
    const int64_t queries = it.part.queries(step_);
    AttentionSum* sums = it.sums + (it.stretch - it.part.first_stretch(step_)) * queries;
    run_stretch(step_, it.part, nullptr, it.stretch, sums, sums->output, scratch, table);
}

void AttentionPlan::run_merge(int64_t merge, const Table& table) const {
    const Split& one = split_[static_cast<size_t>(merge)];
    const int64_t queries = one.part.queries(step_), first = one.part.first_stretch(step_);
    for (int64_t i = 0; i < queries; ++i) {
        const Query query(step_, one.part, i);
        AttentionSum* sum = one.sums + (query.first_stretch() - first) * queries + i;
        for (int64_t stretch = query.first_stretch() + 1; query.sees(stretch); ++stretch) {
            table.attention_merge(*sum, one.sums[(stretch - first) * queries + i], step_.store.value_dim);
        }
        table.attention_finish(*sum, step_.sinks ? step_.sinks + query.head : nullptr, step_.store.value_dim);
    }
}

}  // namespace vivace
