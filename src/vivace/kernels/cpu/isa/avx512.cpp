// The kernels compiled for AVX-512.
#include "avx512.h"

#include "../linear_kernel.h"
#include "../norm_kernel.h"
#include "../table.h"

namespace vivace {

const Table kAvx512Table = {"avx512", LinearKernel<avx512::Vec16>::block, NormKernel<avx512::Vec16>::rms_norm_row};

}  // namespace vivace
