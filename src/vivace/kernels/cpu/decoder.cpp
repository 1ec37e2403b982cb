// The row operations of a decoder's step: embedding, rotary angles, queries and keys, rows chosen for the head.
#include <cstring>
#include <vector>

#include "angles.h"
#include "kernels.h"

namespace vivace {

namespace {

// The elements of one output, at every sixteenth place from p.
template <class Element, class Widen>
void gather(const void* data, int64_t first, int64_t count, float* y, Widen widen) {
    const auto* p = static_cast<const Element*>(data) + first;
    for (int64_t i = 0; i < count; ++i) y[i] = widen(p[i * kPanel]);
}

}  // namespace

void Kernels::embedding(const int64_t* ids, const Panels& weights, float scale, float* y, int64_t rows) {
    const int64_t inputs = weights.inputs;
    share_rows(rows, inputs * 4, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const int64_t first = ids[row] / kPanel * inputs * kPanel + ids[row] % kPanel;
            float* out = y + row * inputs;
            switch (weights.format) {
                case Format::kF32: gather<float>(weights.data, first, inputs, out, [](float x) { return x; }); break;
                case Format::kBf16: gather<uint16_t>(weights.data, first, inputs, out, from_bf16); break;
                case Format::kF16: gather<uint16_t>(weights.data, first, inputs, out, from_f16); break;
                case Format::kI8: break;  // of stores alone
            }
            if (scale != 1.0f) {
                for (int64_t i = 0; i < inputs; ++i) out[i] *= scale;
            }
        }
    });
}

void Kernels::take_rows(const float* x, const int64_t* chosen, float* y, int64_t rows, int64_t width) {
    share_rows(rows, width, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            std::memcpy(y + row * width, x + chosen[row] * width, sizeof(float) * width);
        }
    });
}

void Kernels::angles(const int64_t* position, int64_t position_stride, const int32_t* variant, const float* frequencies,
                     float scale, float* cos, float* sin, int64_t rows, int64_t width) {
    share_rows(rows, width * 40, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float step = static_cast<float>(position[row * position_stride]);
            const float* frequency = frequencies + variant[row] * width;
            for (int64_t i = row * width, j = 0; j < width; ++i, ++j) {
                cos_sin(step * frequency[j], cos + i, sin + i);
                cos[i] *= scale;
                sin[i] *= scale;
            }
        }
    });
}

void Kernels::rope(const float* x, const float* cos, const float* sin, float* y, int64_t rows, int64_t heads, int64_t dim,
                   int64_t angles, bool is_interleaved) {
    share_rows(rows, heads * dim * 2, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t head = row * heads; head < (row + 1) * heads; ++head) {
                table_.rope_head(x + head * dim, cos + row * angles, sin + row * angles, angles, dim, is_interleaved,
                                 y + head * dim);
            }
        }
    });
}

void Kernels::qkv_store(const QkvStep& s, int64_t rows) {
    const int64_t key_dim = s.store.key_dim, value_dim = s.store.value_dim;
    const int64_t q_width = s.heads * key_dim, k_width = s.store.heads * key_dim;
    const int64_t width = q_width + k_width + s.store.heads * value_dim;
    const auto turn = [&](const float* x, const float* norm, int64_t row, float* y) {
        if (norm) {
            table_.rms_norm_row(x, norm, s.eps, key_dim, y);
            x = y;
        }
        table_.rope_head(x, s.cos + row * s.angles, s.sin + row * s.angles, s.angles, key_dim, s.is_interleaved, y);
    };
    share_rows(rows, width * 4, [&](int64_t begin, int64_t end) {
        std::vector<float> key(static_cast<size_t>(key_dim));
        for (int64_t row = begin; row < end; ++row) {
            const float* x = s.x + row * width;
            float* q = s.q + row * q_width;
            for (int64_t i = 0; i < q_width; i += key_dim) turn(x + i, s.q_norm, row, q + i);
            for (int64_t head = 0; head < s.store.heads; ++head) {
                turn(x + q_width + head * key_dim, s.k_norm, row, key.data());
                write_key(s.store, s.slot[row], head, key.data());
                const float* value = x + q_width + k_width + head * value_dim;
                write_value(s.store, s.slot[row], head, value);
            }
        }
    });
}

}  // namespace vivace
