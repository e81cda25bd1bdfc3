// SPDX-License-Identifier: MIT
#include "cpu/generic/vec_scalar.h"
// The vectors come first: the kernels are written over them.
#include "cpu/generic/delta_net_kernels.h"
#include "cpu/generic/kernel_tables.h"

namespace sharpi::cpu {

const DeltaTable kDeltaScalar = make_delta_table();

}  // namespace sharpi::cpu
