// The quantized kernels compiled for AVX-512 without VNNI.
#include "../quant_kernel.h"
#include "avx512_ints.h"

namespace vivace {

const QuantTable kAvx512Quant = {
    ActivationQuantizer<avx512::Vec16, avx512::Ints>::tile,
    QuantKernel<avx512::Vec16, avx512::Ints, avx512::MaddDots>::block,
};

}  // namespace vivace
