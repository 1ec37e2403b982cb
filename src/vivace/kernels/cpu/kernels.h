// The kernels of one program: an instruction set, a thread pool, and the operations over whole tensors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pool.h"
#include "table.h"

namespace vivace {

// Instruction sets that this processor has and this build holds, the best first.
std::vector<std::string> supported_isas();

class Kernels {
public:
    // Throws std::invalid_argument when `isa` is not one of supported_isas() or `threads` is below one.
    Kernels(const std::string& isa, int threads);

    const char* isa() const { return table_.name; }
    int threads() const { return pool_.threads(); }

    // y = residual + (x W^T + bias). x (rows, inputs), weights (panels, inputs, 16), y and residual (rows, outputs).
    void linear(const float* x, const float* weights, const float* bias, const float* residual, float* y, int64_t rows,
                int64_t inputs, int64_t outputs);

    // y = x / sqrt(mean(x^2) + eps) * weight. x, y (rows, width).
    void rms_norm(const float* x, const float* weight, float eps, float* y, int64_t rows, int64_t width);

private:
    // Split `count` items of about `item_cost` multiplications each over the pool; too little work stays on this thread.
    template <class Body>
    void share(int64_t count, int64_t item_cost, const Body& body);

    const Table& table_;
    Pool pool_;
};

}  // namespace vivace
