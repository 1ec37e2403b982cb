// The kernels compiled for any processor.
#include "portable.h"

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

const Table kPortableTable = {
    "portable",
    {LinearKernel<portable::Vec16, F32Weights>::block, LinearKernel<portable::Vec16, Bf16Weights>::block,
     LinearKernel<portable::Vec16, F16Weights>::block},
    NormKernel<portable::Vec16>::rms_norm_row,
    NormKernel<portable::Vec16>::layer_norm_row,
    ActivationKernel<portable::Vec16>::stretch,
    ActivationKernel<portable::Vec16>::soft_cap,
    ActivationKernel<portable::Vec16>::gate,
    ActivationKernel<portable::Vec16>::sum,
    RopeKernel<portable::Vec16>::head,
    RouteKernel<portable::Vec16>::scores,
    ArgmaxKernel<portable::Vec16>::row,
    DrawKernel<portable::Vec16>::largest,
    DrawKernel<portable::Vec16>::weigh,
    AttentionKernel<portable::Vec16>::block,
    AttentionKernel<portable::Vec16>::merge,
    AttentionKernel<portable::Vec16>::finish,
    CeilingKernel<portable::Vec16>::multiply_add,
    CeilingKernel<portable::Vec16>::read_memory,
};

}  // namespace vivace
