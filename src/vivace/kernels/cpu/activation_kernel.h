// Elementwise functions of a stretch of floats, written once over a Vec16. An element's result does not depend on where
// in the array it stands: the last, partial vector goes through the same steps.
#pragma once

#include "math16.h"

namespace vivace {

template <class Vec16>
struct ActivationKernel {
    static void stretch(Activation kind, const float* x, int64_t count, float* y) {
        switch (kind) {
            case Activation::kSilu: return each(x, count, y, silu);
            case Activation::kGelu: return each(x, count, y, gelu);
            case Activation::kGeluTanh: return each(x, count, y, gelu_tanh);
            case Activation::kRelu: return each(x, count, y, relu);
            case Activation::kRelu2: return each(x, count, y, relu2);
            case Activation::kTanh: return each(x, count, y, tanh<Vec16>);
        }
    }

    // y = act(gate) * up
    static void gate(Activation kind, const float* gate, const float* up, int64_t count, float* y) {
        stretch(kind, gate, count, y);
        for (int64_t i = 0; i < count; i += kPanel) {
            const Vec16 active = load_some<Vec16>(y + i, count - i, 0.0f);
            store_some(mul(active, load_some<Vec16>(up + i, count - i, 0.0f)), y + i, count - i);
        }
    }

    static void sum(const float* x, const float* z, int64_t count, float* y) {
        for (int64_t i = 0; i < count; i += kPanel) {
            store_some(add(load_some<Vec16>(x + i, count - i, 0.0f), load_some<Vec16>(z + i, count - i, 0.0f)), y + i,
                       count - i);
        }
    }

    // y = cap tanh(x / cap)
    static void soft_cap(const float* x, int64_t count, float cap, float* y) {
        each(x, count, y, [cap](Vec16 v) { return capped(v, cap); });
    }

    static Vec16 capped(Vec16 x, float cap) { return mul(tanh(div(x, Vec16::all(cap))), Vec16::all(cap)); }

private:
    template <class F>
    static void each(const float* x, int64_t count, float* y, F f) {
        for (int64_t i = 0; i < count; i += kPanel) {
            store_some(f(load_some<Vec16>(x + i, count - i, 0.0f)), y + i, count - i);
        }
    }

    // x / (1 + e^(-s x)) = x sigmoid(s x)
    static Vec16 gated(Vec16 x, Vec16 exponent) { return div(x, add(Vec16::all(1.0f), exp(exponent))); }

    static Vec16 silu(Vec16 x) { return gated(x, mul(x, Vec16::all(-1.0f))); }

    // x / 2 (1 + tanh u) = x / (1 + e^(-2u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)
    static Vec16 gelu_tanh(Vec16 x) {
        const Vec16 cubic = fma(mul(mul(x, x), Vec16::all(0.044715f)), x, x);
        return gated(x, mul(cubic, Vec16::all(-1.59576912f)));
    }

    // x Phi(x) = max(x, 0) - |x| / 2 erfc(|x| / sqrt 2)
    static Vec16 gelu(Vec16 x) {
        const Vec16 size = abs(x);
        const Vec16 tail = erfc_positive(min(Vec16::all(5.0f), mul(size, Vec16::all(0.707106781f))));
        return sub(relu(x), mul(mul(size, Vec16::all(0.5f)), tail));
    }

    static Vec16 relu(Vec16 x) { return max(Vec16::zero(), x); }
    static Vec16 relu2(Vec16 x) { return mul(relu(x), relu(x)); }
};

}  // namespace vivace
