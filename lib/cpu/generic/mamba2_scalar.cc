// SPDX-License-Identifier: MIT
#include "cpu/generic/vec_scalar.h"
// The vectors come first: the kernels are written over them.
#include "cpu/generic/kernel_tables.h"
#include "cpu/generic/mamba2_kernels.h"

namespace sharpi::cpu {

const Mamba2Table kMamba2Scalar = make_mamba2_table();

}  // namespace sharpi::cpu
