// The kernels compiled for AVX2 and FMA.
#include "avx2.h"

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

const Table kAvx2Table = {
    "avx2",
    {LinearKernel<avx2::Vec16, F32Weights>::block, LinearKernel<avx2::Vec16, Bf16Weights>::block,
     LinearKernel<avx2::Vec16, F16Weights>::block},
    NormKernel<avx2::Vec16>::rms_norm_row,
    NormKernel<avx2::Vec16>::layer_norm_row,
    ActivationKernel<avx2::Vec16>::stretch,
    ActivationKernel<avx2::Vec16>::soft_cap,
    ActivationKernel<avx2::Vec16>::gate,
    ActivationKernel<avx2::Vec16>::sum,
    RopeKernel<avx2::Vec16>::head,
    RouteKernel<avx2::Vec16>::scores,
    ArgmaxKernel<avx2::Vec16>::row,
    DrawKernel<avx2::Vec16>::largest,
    DrawKernel<avx2::Vec16>::weigh,
    AttentionKernel<avx2::Vec16>::block,
    AttentionKernel<avx2::Vec16>::merge,
    AttentionKernel<avx2::Vec16>::finish,
    CeilingKernel<avx2::Vec16>::multiply_add,
    CeilingKernel<avx2::Vec16>::read_memory,
};

}  // namespace vivace
