// SPDX-License-Identifier: MIT
#include "cpu/vec_scalar.h"
// The vectors come first: the kernels are written over them.
#include "cpu/ops_kernels.h"

namespace sharpi::cpu {

const OpsTable kOpsScalar = make_ops_table();

}  // namespace sharpi::cpu
