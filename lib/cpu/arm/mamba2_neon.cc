// SPDX-License-Identifier: MIT
#include "cpu/arm/vec_neon.h"
// The vectors come first: the kernels are written over them.
#include "cpu/arm/kernel_tables.h"
#include "cpu/generic/mamba2_kernels.h"

namespace sharpi::cpu {

const Mamba2Table kMamba2Neon = make_mamba2_table();

}  // namespace sharpi::cpu
