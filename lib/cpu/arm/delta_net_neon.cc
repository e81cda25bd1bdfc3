// SPDX-License-Identifier: MIT
#include "cpu/arm/vec_neon.h"
// The vectors come first: the kernels are written over them.
#include "cpu/arm/kernel_tables.h"
#include "cpu/generic/delta_net_kernels.h"

namespace sharpi::cpu {

const DeltaTable kDeltaNeon = make_delta_table();

}  // namespace sharpi::cpu
