// The kernels compiled for any processor.
#include "portable.h"

#include "../linear_kernel.h"
#include "../norm_kernel.h"
#include "../table.h"

namespace vivace {

const Table kPortableTable = {"portable", LinearKernel<portable::Vec16>::block, NormKernel<portable::Vec16>::rms_norm_row};

}  // namespace vivace
