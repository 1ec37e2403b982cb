// The Python methods `attention` and `attention_packed`: check tensors and indices, list the units of each sequence.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "arrays.h"
#include "module.h"

namespace vivace {
namespace {

using Indices = std::vector<int64_t>;
using UnitLists = std::optional<std::vector<Indices>>;

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// Which rows a row sees; `window` 0 means no window.
void set_reach(AttentionStep& step, int64_t window, bool is_causal) {
    constexpr int64_t kFar = int64_t{1} << 40;
    step.behind = window > 0 ? window - 1 : kFar;
    step.ahead = is_causal ? 0 : step.behind;
}

Format format_of(const Array& array) {
    if (array.dtype() == nb::dtype<float>()) return Format::kF32;
    if (array.dtype().code == static_cast<uint8_t>(nb::dlpack::dtype_code::Bfloat) && array.dtype().bits == 16) {
        return Format::kBf16;
    }
    if (array.dtype().code == static_cast<uint8_t>(nb::dlpack::dtype_code::Float) && array.dtype().bits == 16) {
        return Format::kF16;
    }
    refuse("keys are not float32, bfloat16 or float16");
}

void check_starts(const Indices& starts, int64_t rows) {
    bool is_rising = !starts.empty() && starts.front() == 0 && starts.back() == rows;
    for (size_t i = 1; i < starts.size(); ++i) is_rising = is_rising && starts[i - 1] <= starts[i];
    if (!is_rising) refuse("starts do not rise from 0 to the number of rows, " + std::to_string(rows));
}

// Shapes that both methods share. q (rows, heads, dim), y (rows, heads, value_dim).
AttentionStep step_of(const Array& q, const Array& y, int64_t kv_heads, const MaybeArray& sinks) {
    AttentionStep step{};
    step.heads = size_of(q, 1);
    step.key_dim = size_of(q, 2);
    step.value_dim = size_of(y, 2);
    step.kv_heads = kv_heads;
    step.q = floats(q, "q", {kAny, kAny, kAny});
    step.y = floats(y, "y", {size_of(q, 0), step.heads, kAny});
    step.sinks = floats(sinks, "sinks", {step.heads});
    if (kv_heads < 1 || step.heads % kv_heads != 0) {
        refuse(std::to_string(step.heads) + " heads cannot share " + std::to_string(kv_heads) + " key heads");
    }
    return step;
}

// Block tables: where unit u of a sequence is stored.
struct Table32 {
    const int32_t* pages;
    int64_t columns, page_size, page_count;

    int64_t slot(int64_t sequence, int64_t unit) const {
        if (unit < 0 || unit / page_size >= columns) refuse("unit " + std::to_string(unit) + " is beyond the block table");
        const int64_t page = pages[sequence * columns + unit / page_size];
        if (page < 0 || page >= page_count) refuse("page " + std::to_string(page) + " is not in the store");
        return page * page_size + unit % page_size;
    }
};

void list_chain(AttentionStep& step, const Table32& table, const Indices& starts, const Indices& context) {
    for (size_t s = 0; s < context.size(); ++s) {
        const int64_t count = starts[s + 1] - starts[s], end = context[s] + count;
        if (count == 0) continue;
        if (context[s] < 0) refuse("a context is negative");
        const int64_t low = std::max<int64_t>(0, context[s] - step.behind);
        const int64_t slot_begin = static_cast<int64_t>(step.slots.size());
        step.segments.push_back({starts[s], count, slot_begin, end - low, context[s] - low});
        for (int64_t unit = low; unit < end; ++unit) step.slots.push_back(table.slot(static_cast<int64_t>(s), unit));
    }
}

// Rows of a draft tree: each is a segment of its own, over the units that it sees.
void list_tree(AttentionStep& step, const Table32& table, const Indices& starts, const std::vector<Indices>& seen) {
    if (static_cast<int64_t>(seen.size()) != starts.back()) refuse("seen does not list the units of each row");
    for (size_t s = 0; s + 1 < starts.size(); ++s) {
        for (int64_t row = starts[s]; row < starts[s + 1]; ++row) {
            const Indices& units = seen[static_cast<size_t>(row)];
            const int64_t slot_begin = static_cast<int64_t>(step.slots.size()), count = static_cast<int64_t>(units.size());
            if (count == 0) refuse("a row sees no unit");
            step.segments.push_back({row, 1, slot_begin, count, count - 1});
            for (const int64_t unit : units) step.slots.push_back(table.slot(static_cast<int64_t>(s), unit));
        }
    }
}

void attention(Kernels& kernels, const Array& q, const Array& keys, const Array& values, const Array& table,
               int64_t page_size, const Indices& starts, const Indices& context, const UnitLists& seen,
               const MaybeArray& sinks, float scale, int64_t window, float soft_cap, bool is_causal, const Array& y) {
    AttentionStep step = step_of(q, y, size_of(keys, 2), sinks);
    const int64_t page_count = size_of(keys, 0);
    step.format = format_of(keys);
    step.keys = data_of(keys, "keys", keys.dtype(), "float", {kAny, page_size, step.kv_heads, step.key_dim});
    step.values = data_of(values, "values", keys.dtype(), "like the keys",
                          {page_count, page_size, step.kv_heads, step.value_dim});
    const void* pages = data_of(table, "table", nb::dtype<int32_t>(), "int32",
                                {static_cast<int64_t>(context.size()), kAny});
    check_starts(starts, size_of(q, 0));
    if (starts.size() != context.size() + 1) refuse("starts has not one entry more than context");
    const Table32 lookup{static_cast<const int32_t*>(pages), size_of(table, 1), page_size, page_count};
    set_reach(step, seen ? 0 : window, is_causal);
    step.scale = scale;
    step.soft_cap = soft_cap;
    if (seen) {
        list_tree(step, lookup, starts, *seen);
    } else {
        list_chain(step, lookup, starts, context);
    }
    nb::gil_scoped_release unlocked;
    kernels.attention(step);
}

void attention_packed(Kernels& kernels, const Array& q, const Array& keys, const Array& values, const Indices& starts,
                      float scale, int64_t window, float soft_cap, bool is_causal, const Array& y) {
    AttentionStep step = step_of(q, y, size_of(keys, 1), std::nullopt);
    const int64_t rows = size_of(q, 0);
    step.format = Format::kF32;
    step.keys = floats(keys, "keys", {rows, step.kv_heads, step.key_dim});
    step.values = floats(values, "values", {rows, step.kv_heads, step.value_dim});
    check_starts(starts, rows);
    set_reach(step, window, is_causal);
    step.scale = scale;
    step.soft_cap = soft_cap;
    for (int64_t row = 0; row < rows; ++row) step.slots.push_back(row);
    for (size_t s = 0; s + 1 < starts.size(); ++s) {
        const int64_t count = starts[s + 1] - starts[s];
        if (count > 0) step.segments.push_back({starts[s], count, starts[s], count, 0});
    }
    nb::gil_scoped_release unlocked;
    kernels.attention(step);
}

}  // namespace

void add_attention(nb::class_<Kernels>& kernels) {
    kernels
        .def("attention", &attention, nb::arg("q"), nb::arg("keys"), nb::arg("values"), nb::arg("table"),
             nb::arg("page_size"), nb::arg("starts"), nb::arg("context"), nb::arg("seen").none(),
             nb::arg("sinks").none(), nb::arg("scale"), nb::arg("window"), nb::arg("soft_cap"), nb::arg("is_causal"),
             nb::arg("y"))
        .def("attention_packed", &attention_packed, nb::arg("q"), nb::arg("keys"), nb::arg("values"), nb::arg("starts"),
             nb::arg("scale"), nb::arg("window"), nb::arg("soft_cap"), nb::arg("is_causal"), nb::arg("y"));
}

}  // namespace vivace
