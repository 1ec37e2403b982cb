// The kernels compiled for AVX-512.
#include "avx512.h"

#include "../activation_kernel.h"
#include "../argmax_kernel.h"
#include "../attention_kernel.h"
#include "../ceiling_kernel.h"
#include "../draw_kernel.h"
#include "../linear_kernel.h"
#include "../norm_kernel.h"
#include "../rope_kernel.h"
#include "../route_kernel.h"
#include "../table.h"

namespace vivace {

const Table kAvx512Table = {
    "avx512",
    {LinearKernel<avx512::Vec16, F32Weights>::block, LinearKernel<avx512::Vec16, Bf16Weights>::block,
     LinearKernel<avx512::Vec16, F16Weights>::block},
    NormKernel<avx512::Vec16>::rms_norm_row,
    NormKernel<avx512::Vec16>::layer_norm_row,
    ActivationKernel<avx512::Vec16>::stretch,
    ActivationKernel<avx512::Vec16>::soft_cap,
    ActivationKernel<avx512::Vec16>::gate,
    ActivationKernel<avx512::Vec16>::sum,
    RopeKernel<avx512::Vec16>::head,
    RouteKernel<avx512::Vec16>::scores,
    ArgmaxKernel<avx512::Vec16>::row,
    DrawKernel<avx512::Vec16>::largest,
    DrawKernel<avx512::Vec16>::weigh,
    AttentionKernel<avx512::Vec16>::block,
    AttentionKernel<avx512::Vec16>::merge,
    AttentionKernel<avx512::Vec16>::finish,
    CeilingKernel<avx512::Vec16>::multiply_add,
    CeilingKernel<avx512::Vec16>::read_memory,
};

}  // namespace vivace
