// `attention` and `attention_packed`, as methods of Kernels and Tape: which units each row sees, read when they run.
#include <nanobind/stl/optional.h>

#include <algorithm>

#include "module.h"

namespace vivace {
namespace {

// Which rows a row sees; `window` 0 means no window.
void set_reach(AttentionStep& step, int64_t window, bool is_causal) {
    constexpr int64_t kFar = int64_t{1} << 40;
    step.behind = window > 0 ? window - 1 : kFar;
    step.ahead = is_causal ? 0 : step.behind;
}

void check_starts(const int64_t* starts, int64_t sequences, int64_t rows) {
    bool is_rising = sequences >= 0 && starts[0] == 0 && starts[sequences] == rows;
    for (int64_t s = 0; s < sequences; ++s) is_rising = is_rising && starts[s] <= starts[s + 1];
    if (!is_rising) refuse("starts do not rise from 0 to the number of rows, " + std::to_string(rows));
}

// Shapes that both methods share. q (rows, heads, dim), y (rows, heads, value_dim).
AttentionStep step_of(const Array& q, const Array& y, const KvStore& store, const MaybeArray& sinks) {
    AttentionStep step{};
    step.store = store;
    step.heads = size_of(q, 1);
    step.q = floats(q, "q", {kAny, kAny, store.key_dim});
    step.y = floats(y, "y", {size_of(q, 0), step.heads, store.value_dim});
    step.sinks = floats(sinks, "sinks", {step.heads});
    if (store.heads < 1 || step.heads % store.heads != 0) {
        refuse(std::to_string(step.heads) + " heads cannot share " + std::to_string(store.heads) + " key heads");
    }
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
             int64_t window, float soft_cap, bool is_causal, const Array& y) {
    AttentionStep step = step_of(q, y, store_of({keys, values, key_scales, value_scales}), sinks);
    const int64_t rows = size_of(q, 0), sequences = size_of(context, 0);
    if (page_size != step.store.page_size) {
        refuse("pages of " + std::to_string(page_size) + " units in a store of " + std::to_string(step.store.page_size));
    }
    set_reach(step, window, is_causal);
    step.scale = scale;
    step.soft_cap = soft_cap;
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

Op attention_packed(const Array& q, const Array& keys, const Array& values, const Array& starts, float scale,
                    int64_t window, float soft_cap, bool is_causal, const Array& y) {
    const int64_t rows = size_of(q, 0), sequences = size_of(starts, 0) - 1;
    KvStore store{};  // each row is a page of its own
    store.pages = rows;
    store.page_size = 1;
    store.heads = size_of(keys, 1);
    store.key_dim = size_of(keys, 2);
    store.value_dim = size_of(values, 2);
    store.keys = floats(keys, "keys", {rows, kAny, kAny});
    store.values = floats(values, "values", {rows, store.heads, kAny});
    AttentionStep step = step_of(q, y, store, std::nullopt);
    set_reach(step, window, is_causal);
    step.scale = scale;
    step.soft_cap = soft_cap;
    const int64_t* start_data = longs(starts, "starts", {kAny});
    return {{rows, sequences}, [=](Kernels& kernels, const Extent& extent) {
                check_starts(start_data, extent.sequences, extent.rows);
                AttentionStep now = step;
                for (int64_t row = 0; row < extent.rows; ++row) now.slots.push_back(row);
                for (int64_t s = 0; s < extent.sequences; ++s) {
                    const int64_t first = start_data[s], count = start_data[s + 1] - first;
                    if (count > 0) now.segments.push_back({first, count, nullptr, 0, first, count, 0});
                }
                kernels.attention(now);
            }};
}

}  // namespace

void add_attention(Classes& c) {
    using nb::arg;
    add_op(c, "attention", &attention, arg("q"), arg("keys"), arg("values"), arg("key_scales").none(),
           arg("value_scales").none(), arg("table"), arg("page_size"), arg("starts"),
           arg("context"), arg("parent").none(), arg("sinks").none(), arg("scale"), arg("window"),
           arg("soft_cap"), arg("is_causal"), arg("y"));
    add_op(c, "attention_packed", &attention_packed, arg("q"), arg("keys"), arg("values"), arg("starts"), arg("scale"),
           arg("window"), arg("soft_cap"), arg("is_causal"), arg("y"));
}

}  // namespace vivace
