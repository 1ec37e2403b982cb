#include "quant_matrix.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "narrow.h"
#include "table.h"

namespace vivace {
namespace {

uint32_t four_bytes(const uint8_t* p) {
    uint32_t four;
    std::memcpy(&four, p, sizeof four);
    return four;
}

void put(uint8_t* p, uint32_t four) { std::memcpy(p, &four, sizeof four); }

// Bits of a code that stand in the first vectors: whole codes of 8 bits, else the lowest 2 or 4.
int low_bits(int bits) { return bits == 8 ? 8 : bits < 4 ? 2 : 4; }

// Where bits of the codes of a step stand: the vector, and the place within its bytes.
struct Spot {
    int vector, place;
};

Spot low_spot(int bits, int step) {
    switch (low_bits(bits)) {
        case 8: return {step, 0};
        case 4: return {step % 4, step / 4 * 4};
        default: return {step / 4, step % 4 * 2};
    }
}

Spot high_spot(int bits, int step) {
    const int low = low_bits(bits), width = bits - low, steps = kSteps / width;
    return {low + step / steps, step % steps * width};
}

// The codes of one output and group, (32), into their lane of a block; `out` is this lane of vector 0.
void pack_codes(int bits, const uint8_t* codes, int64_t vector_stride, uint8_t* out) {
    const int low = low_bits(bits);
    for (int vector = 0; vector < bits; ++vector) put(out + vector * vector_stride, 0);
    const auto add = [&](Spot spot, uint32_t four) {
        uint8_t* to = out + spot.vector * vector_stride;
        put(to, four_bytes(to) | four << spot.place);
    };
    for (int step = 0; step < kSteps; ++step) {
        const uint32_t four = four_bytes(codes + step * 4);
        add(low_spot(bits, step), four & 0x01010101u * ((1u << low) - 1u));
        if (bits > low) add(high_spot(bits, step), four >> low & 0x01010101u * ((1u << (bits - low)) - 1u));
    }
}

uint32_t code_at(const QuantLayout& layout, int input, int64_t vector_stride, const uint8_t* lane) {
    const int step = input / 4, byte = input % 4, low = low_bits(layout.bits);
    const auto bits_at = [&](Spot spot, int width) {
        return lane[spot.vector * vector_stride + byte] >> spot.place & ((1u << width) - 1u);
    };
    uint32_t code = bits_at(low_spot(layout.bits, step), low);
    if (layout.bits > low) code |= bits_at(high_spot(layout.bits, step), layout.bits - low) << low;
    return layout.has_table ? layout.table[code] : code;
}

}  // namespace

QuantMatrix::QuantMatrix(const QuantLayout& layout, int64_t outputs, int64_t inputs, uint8_t* data)
    : layout_(layout), outputs_(outputs), groups_(inputs / kGroup), data_(data) {}

int64_t QuantMatrix::data_bytes(const QuantLayout& l, int64_t outputs, int64_t inputs) {
    const bool is_code = (l.bits >= 2 && l.bits <= 6) || l.bits == 8;
    const bool is_table = !l.has_table || (l.bits == 4 && !l.has_minimum);
    const bool is_minimum = !l.has_minimum || l.has_small_codes();
    const bool is_zero = l.zero > 0 && l.zero <= 128 && (l.zero & (l.zero - 1)) == 0;
    const bool is_group = l.group == kGroup || (l.group == 16 && l.has_fine);
    const bool is_span = l.span == kGroup || (l.has_fine && l.span > kGroup && l.span % kGroup == 0);
    const bool is_shape = outputs > 0 && inputs > 0 && inputs % std::max(l.span, kGroup) == 0;
    if (!(is_code && is_table && is_minimum && is_zero && is_group && is_span && is_shape)) {
        throw std::invalid_argument("no kernel reads weights of this layout and shape");
    }
    return (outputs + 15) / 16 * l.panel_bytes(inputs / kGroup);
}

QuantMatrix::Place QuantMatrix::place(int64_t output) const {
    const int64_t panel = output / kPanel, whole = panels() / kGroupPanels * kGroupPanels;
    const int lane = static_cast<int>(output % kPanel);
    if (panel >= whole) return {panel, 1, 0, lane};
    return {panel / kGroupPanels * kGroupPanels, kGroupPanels, static_cast<int>(panel % kGroupPanels), lane};
}

void QuantMatrix::pack(int64_t first_output, const QuantRows& rows) {
    const QuantLayout& l = layout_;
    const int64_t factor_bytes = l.is_f32 ? 4 : 2, spans = inputs() / l.span, fines = inputs() / l.group;
    const auto* coarse = static_cast<const uint8_t*>(rows.coarse);
    const auto* coarse_minimum = static_cast<const uint8_t*>(rows.coarse_minimum);
    for (int64_t row = 0; row < rows.rows; ++row) {
        const Place at = place(first_output + row);
        uint8_t* block = data_ + at.block_panel * l.panel_bytes(groups_);
        for (int64_t g = 0; g < groups_; ++g) {
            uint8_t* lane = block + g * at.panels * l.code_bytes() + at.panel * kVector + at.lane * 4;
            pack_codes(l.bits, rows.codes + row * inputs() + g * kGroup, at.panels * kVector, lane);
        }
        const int64_t minima = at.panels * kPanel;  // factors between a scale and its minimum
        for (int64_t s = 0; s < spans; ++s) {
            uint8_t* to = block + at.panels * (l.coarse_offset(groups_) + s * l.coarse_bytes());
            to += (at.panel * kPanel + at.lane) * factor_bytes;
            std::memcpy(to, coarse + (row * spans + s) * factor_bytes, factor_bytes);
            if (l.has_minimum) {
                std::memcpy(to + minima * factor_bytes, coarse_minimum + (row * spans + s) * factor_bytes, factor_bytes);
            }
        }
        for (int64_t f = 0; l.has_fine && f < fines; ++f) {
            uint8_t* to = block + at.panels * (l.fine_offset(groups_) + f * l.fine_bytes());
            to += at.panel * kPanel + at.lane;
            *to = static_cast<uint8_t>(rows.fine[row * fines + f]);
            if (l.has_minimum) to[minima] = static_cast<uint8_t>(rows.fine_minimum[row * fines + f]);
        }
    }
}

void QuantMatrix::read_row(int64_t output, float* values) const {
    const QuantLayout& l = layout_;
    const Place at = place(output);
    const uint8_t* block = panel(at.block_panel);
    const int64_t here = at.panel * kPanel + at.lane, minima = at.panels * kPanel;
    const float zero = static_cast<float>(l.zero);
    for (int64_t f = 0; f < inputs() / l.group; ++f) {
        const uint8_t* coarse = block + at.panels * (l.coarse_offset(groups_) + f * l.group / l.span * l.coarse_bytes());
        const auto* fine = reinterpret_cast<const int8_t*>(block + at.panels * (l.fine_offset(groups_) + f * l.fine_bytes()));
        const auto factor = [&](int64_t which) {
            float value;
            if (l.is_f32) {
                std::memcpy(&value, coarse + which * 4, sizeof value);
            } else {
                uint16_t half;
                std::memcpy(&half, coarse + which * 2, sizeof half);
                value = from_f16(half);
            }
            return l.has_fine ? value * static_cast<float>(fine[which]) : value;
        };
        const float scale = factor(here), minimum = l.has_minimum ? factor(minima + here) : 0.0f;
        for (int64_t input = f * l.group; input < (f + 1) * l.group; ++input) {
            const uint8_t* lane = block + input / kGroup * at.panels * l.code_bytes() + at.panel * kVector + at.lane * 4;
            const auto code = static_cast<float>(code_at(l, static_cast<int>(input % kGroup), at.panels * kVector, lane));
            values[input] = l.has_minimum ? scale * code + minimum : scale * (code - zero);
        }
    }
}

}  // namespace vivace
