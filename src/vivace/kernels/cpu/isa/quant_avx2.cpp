// The quantized kernels compiled for AVX2 without VNNI.
#include "../quant_kernel.h"
#include "avx2_ints.h"

namespace vivace {

const QuantTable kAvx2Quant = {
    ActivationQuantizer<avx2::Vec16, avx2::Ints>::tile,
    QuantKernel<avx2::Vec16, avx2::Ints, avx2::MaddDots>::block,
};

}  // namespace vivace
