// `attention` and `attention_packed`, as methods of Kernels and Tape: which units each row sees, read when they run.
#include <nanobind/stl/optional.h>

#include <algorithm>

#include "module.h"

namespace vivace {
namespace {

// How units are scored and which ones a row sees, as Python tells it; `window` 0 means no window, `soft_cap` 0 no cap.
struct Scoring {
    float scale;
    float soft_cap;
    int64_t window;
    bool is_causal;
    const MaybeArray& slopes;
    const MaybeArray& biases;
};

template <class Step>
void set_scoring(Step& step, const Scoring& scoring) {
    constexpr int64_t kFar = int64_t{1} << 40;
    step.behind = scoring.window > 0 ? scoring.window - 1 : kFar;
    step.ahead = scoring.is_causal ? 0 : step.behind;
    step.scale = scoring.scale;
    step.soft_cap = scoring.soft_cap;
    step.slopes = floats(scoring.slopes, "slopes", {step.heads});
    step.biases = floats(scoring.biases, "biases", {step.heads, kAny});
    if (!step.biases) return;
    const int64_t width = size_of(*scoring.biases, 1);
    if (width % 2 == 0) refuse("biases are a table of " + std::to_string(width) + " distances, expected an odd number");
    step.bias_reach = width / 2;
}

void check_starts(const int64_t* starts, int64_t sequences, int64_t rows) {
    bool is_rising = sequences >= 0 && starts[0] == 0 && starts[sequences] == rows;
    for (int64_t s = 0; s < sequences; ++s) is_rising = is_rising && starts[s] <= starts[s + 1];
    if (!is_rising) refuse("starts do not rise from 0 to the number of rows, " + std::to_string(rows));
}

void check_heads(int64_t heads, int64_t kv_heads) {
    if (heads < 1 || kv_heads < 1 || heads % kv_heads != 0) {
        refuse(std::to_string(heads) + " heads cannot share " + std::to_string(kv_heads) + " key heads");
    }
}

// Shapes of attention over a store. q (rows, heads, dim), y (rows, heads, value_dim).
AttentionStep step_of(const Array& q, const Array& y, const KvStore& store, const MaybeArray& sinks) {
    AttentionStep step{};
    step.store = store;
    step.heads = size_of(q, 1);
    step.q = floats(q, "q", {kAny, kAny, store.key_dim});
    step.y = floats(y, "y", {size_of(q, 0), step.heads, store.value_dim});
    step.sinks = floats(sinks, "sinks", {step.heads});
    check_heads(step.heads, store.heads);
    return step;
}

// How the rows of a step see each other and the pages of their sequences.
struct Sequences {
    const int64_t* starts;   // (sequences + 1)
    const int64_t* context;  // (sequences)
    const int32_t* parent;   // (rows) or null
    const int32_t* table;    // (sequences, columns)
    int64_t columns, page_size, page_count;

    // The pages of a sequence; raises ValueError unless units first .. last - 1 stand in pages of the store.
    const int32_t* pages(int64_t sequence, int64_t first, int64_t last) const {
        if (first < 0) refuse("a context is negative");
        if (last > columns * page_size) refuse("unit " + std::to_string(last - 1) + " is beyond the block table");
        const int32_t* row = table + sequence * columns;
        for (int64_t page = first / page_size; page * page_size < last; ++page) {
            if (row[page] < 0 || row[page] >= page_count) {
                refuse("page " + std::to_string(row[page]) + " is not in the store");
            }
        }
        return row;
    }
};

// The end of the rows from the first one on whose parent is the row before: all of a sequence but a draft tree that branches.
int64_t chain_end(const Sequences& where, int64_t first, int64_t last) {
    if (!where.parent) return last;
    int64_t row = first;
    while (row < last && where.parent[row] == (row == first ? -1 : row - 1)) ++row;
    return row;
}

// The rows of a chain are one segment. Rows of a draft tree are a segment each, over the units up to the end of the chain
// or up to where they branch off it, and then their own chain of parents.
void list_rows(AttentionStep& step, const Sequences& where, int64_t s) {
    const int64_t first = where.starts[s], last = where.starts[s + 1], context = where.context[s];
    if (first == last) return;
    const int64_t seen = context < 0 ? context : std::max<int64_t>(0, context - step.behind);
    const int32_t* pages = where.pages(s, seen, context + last - first);
    const int64_t chain = chain_end(where, first, last);
    if (chain > first) {
        const int64_t units = context + chain - first;
        step.segments.push_back({first, chain - first, pages, units, 0, units, context});
    }
    for (int64_t row = chain; row < last; ++row) {
        const auto begin = static_cast<int64_t>(step.slots.size());
        int64_t ancestor = row;
        while (ancestor >= chain) {
            const int64_t next = where.parent[ancestor], unit = context + ancestor - first;
            if (next >= ancestor || (next >= 0 && next < first)) refuse("a parent is no earlier row of its sequence");
            step.slots.push_back(pages[unit / where.page_size] * where.page_size + unit % where.page_size);
            ancestor = next;
        }
        std::reverse(step.slots.begin() + begin, step.slots.end());
        const int64_t paged = ancestor < 0 ? context : context + ancestor - first + 1;
        const int64_t units = paged + static_cast<int64_t>(step.slots.size()) - begin;
        step.segments.push_back({row, 1, pages, paged, begin, units, units - 1});
    }
}

Op attention(const Array& q, const Array& keys, const Array& values, const MaybeArray& key_scales,
             const MaybeArray& value_scales, const Array& table, int64_t page_size, const Array& starts,
             const Array& context, const MaybeArray& parent, const MaybeArray& sinks, float scale,
             float soft_cap, int64_t window, bool is_causal, const MaybeArray& slopes, const MaybeArray& biases,
             const Array& y) {
    AttentionStep step = step_of(q, y, store_of({keys, values, key_scales, value_scales}), sinks);
    const int64_t rows = size_of(q, 0), sequences = size_of(context, 0);
    if (page_size != step.store.page_size) {
        refuse("pages of " + std::to_string(page_size) + " units in a store of " + std::to_string(step.store.page_size));
    }
    set_scoring(step, {scale, soft_cap, window, is_causal, slopes, biases});
    const Sequences where{longs(starts, "starts", {sequences + 1}),
                          longs(context, "context", {kAny}),
                          parent && is_causal ? ints(*parent, "parent", {rows}) : nullptr,
                          ints(table, "table", {sequences, kAny}),
                          size_of(table, 1),
                          page_size,
                          step.store.pages};
    return {{rows, sequences}, [=](Kernels& kernels, const Extent& extent) {
                check_starts(where.starts, extent.sequences, extent.rows);
                AttentionStep now = step;
                for (int64_t s = 0; s < extent.sequences; ++s) list_rows(now, where, s);
                kernels.attention(now);
            }};
}

Op attention_packed(const Array& qkv, int64_t heads, int64_t kv_heads, const Array& starts, float scale, float soft_cap,
                    int64_t window, bool is_causal, const MaybeArray& slopes, const MaybeArray& biases, const Array& y) {
    const int64_t rows = size_of(qkv, 0), sequences = size_of(starts, 0) - 1;
    PackedStep step{};
    step.heads = heads;
    step.kv_heads = kv_heads;
    check_heads(heads, kv_heads);
    step.dim = size_of(y, 1) / heads;
    step.qkv = floats(qkv, "qkv", {kAny, step.width()});
    step.y = floats(y, "y", {rows, heads * step.dim});
    step.starts = longs(starts, "starts", {kAny});
    set_scoring(step, {scale, soft_cap, window, is_causal, slopes, biases});
    return {{rows, sequences}, [=](Kernels& kernels, const Extent& extent) {
                check_starts(step.starts, extent.sequences, extent.rows);
                PackedStep now = step;
                now.sequences = extent.sequences;
                kernels.attention_packed(now);
            }};
}

}  // namespace

void add_attention(Classes& c) {
    using nb::arg;
    add_op(c, "attention", &attention, arg("q"), arg("keys"), arg("values"), arg("key_scales").none(),
           arg("value_scales").none(), arg("table"), arg("page_size"), arg("starts"), arg("context"),
           arg("parent").none(), arg("sinks").none(), arg("scale"), arg("soft_cap"), arg("window"), arg("is_causal"),
           arg("slopes").none(), arg("biases").none(), arg("y"));
    add_op(c, "attention_packed", &attention_packed, arg("qkv"), arg("heads"), arg("kv_heads"), arg("starts"),
           arg("scale"), arg("soft_cap"), arg("window"), arg("is_causal"), arg("slopes").none(), arg("biases").none(),
           arg("y"));
}

}  // namespace vivace
