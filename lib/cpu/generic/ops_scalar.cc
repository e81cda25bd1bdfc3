// SPDX-License-Identifier: MIT
#include "cpu/generic/vec_scalar.h"
// The vectors come first: the kernels are written over them.
#include "cpu/generic/kernel_tables.h"
#include "cpu/generic/ops_kernels.h"

namespace sharpi::cpu {

const OpsTable kOpsScalar = make_ops_table();

}  // namespace sharpi::cpu
