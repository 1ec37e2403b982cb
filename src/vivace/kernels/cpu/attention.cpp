#include "attention.h"

#include <algorithm>

namespace vivace {
namespace {

// Working memory of one thread, kept between calls because long contexts need megabytes.
struct Scratch {
    std::vector<const float*> keys, values;
    std::vector<float> widened, scores, turned;
};

int64_t first_seen(const AttentionStep& step, const Segment& segment, int64_t row) {
    return std::max<int64_t>(0, segment.position + row - step.behind);
}

int64_t last_seen(const AttentionStep& step, const Segment& segment, int64_t row) {
    return std::min(segment.units, segment.position + row + 1 + step.ahead);
}

// Point at the vectors of one key head; those of half-precision stores are widened into `room` first.
void point_at(const AttentionStep& step, const void* store, int64_t dim, const AttentionPart& part, float* room,
              std::vector<const float*>& pointers) {
    const Segment& segment = *part.segment;
    const int64_t begin = part.begin(step), end = part.end(step), stride = step.kv_heads * dim;
    pointers.resize(static_cast<size_t>(end - begin));
    const float** next = pointers.data();
    const auto add = [&](int64_t slot) {
        const int64_t offset = slot * stride + part.kv_head * dim;
        if (step.format == Format::kF32) {
            *next++ = static_cast<const float*>(store) + offset;
        } else {
            widen(store, offset, dim, step.format, room);
            *next++ = room;
            room += dim;
        }
    };
    int64_t unit = begin;
    while (unit < std::min(end, segment.paged)) {
        const int64_t page = unit / step.page_size, first = page * step.page_size;
        const int64_t last = std::min({end, segment.paged, first + step.page_size});
        for (; unit < last; ++unit) add(segment.pages[page] * step.page_size + unit - first);
    }
    for (; unit < end; ++unit) add(step.slots[static_cast<size_t>(segment.slot_begin + unit - segment.paged)]);
}

void add_query(const AttentionStep& step, const AttentionPart& part, int64_t row, int64_t head, AttentionBlock& block) {
    const Segment& segment = *part.segment;
    const int64_t place = (segment.first_row + row) * step.heads + head;
    const int i = block.query_count++;
    block.queries[i] = step.q + place * step.key_dim;
    block.outputs[i] = step.y + place * step.value_dim;
    block.sinks[i] = step.sinks ? step.sinks + head : nullptr;
    block.first[i] = first_seen(step, segment, row) - part.begin(step);
    block.last[i] = last_seen(step, segment, row) - part.begin(step);
}

}  // namespace

int64_t AttentionPart::begin(const AttentionStep& step) const { return first_seen(step, *segment, first); }
int64_t AttentionPart::end(const AttentionStep& step) const { return last_seen(step, *segment, first + count - 1); }

int64_t AttentionPart::cost(const AttentionStep& step) const {
    const int64_t queries = count * (step.heads / step.kv_heads);
    return (end(step) - begin(step)) * (step.key_dim + step.value_dim) * (queries + 2);
}

std::vector<AttentionPart> attention_parts(const AttentionStep& step) {
    const int64_t group = step.heads / step.kv_heads;
    const int64_t most_rows = std::max<int64_t>(1, kBlockQueries / group);
    std::vector<AttentionPart> parts;
    for (const auto& segment : step.segments)
        for (int64_t first = 0; first < segment.row_count; first += most_rows)
            for (int64_t kv_head = 0; kv_head < step.kv_heads; ++kv_head)
                parts.push_back({&segment, first, std::min(most_rows, segment.row_count - first), kv_head});
    return parts;
}

void run_attention_part(const AttentionStep& step, const AttentionPart& part, const Table& table) {
    thread_local Scratch scratch;
    const int64_t units = part.end(step) - part.begin(step), group = step.heads / step.kv_heads;
    AttentionBlock block;
    block.units = units;
    block.key_dim = step.key_dim;
    block.value_dim = step.value_dim;
    block.scale = step.scale;
    block.soft_cap = step.soft_cap;
    block.score_stride = (units + kPanel - 1) / kPanel * kPanel;
    if (step.format != Format::kF32) scratch.widened.resize(static_cast<size_t>(units * (step.key_dim + step.value_dim)));
    scratch.scores.resize(static_cast<size_t>(kBlockQueries * block.score_stride));
    scratch.turned.resize(static_cast<size_t>(step.key_dim * kPanel));
    point_at(step, step.keys, step.key_dim, part, scratch.widened.data(), scratch.keys);
    point_at(step, step.values, step.value_dim, part, scratch.widened.data() + units * step.key_dim, scratch.values);
    block.keys = scratch.keys.data();
    block.values = scratch.values.data();
    block.scores = scratch.scores.data();
    block.turned = scratch.turned.data();
    // More heads than a block holds share one key head only in extreme models: then the row is computed in several blocks.
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
