// The parts of the Python module that stand in files of their own.
#pragma once

#include <nanobind/nanobind.h>

#include "kernels.h"

namespace vivace {

// Adds the methods `attention` and `attention_packed`.
void add_attention(nanobind::class_<Kernels>& kernels);

}  // namespace vivace
