// SPDX-License-Identifier: MIT
#include "cpu/x86/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/generic/delta_net_kernels.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {

const DeltaTable kDeltaAvx512 = make_delta_table();

}  // namespace sharpi::cpu
