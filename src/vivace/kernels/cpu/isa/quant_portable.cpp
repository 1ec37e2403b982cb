// The quantized kernels compiled for any processor.
#include "../quant_kernel.h"
#include "portable_ints.h"

namespace vivace {

const QuantTable kPortableQuant = {
    ActivationQuantizer<portable::Vec16, portable::Ints>::tile,
    QuantKernel<portable::Vec16, portable::Ints, portable::Dots>::block,
};

}  // namespace vivace
