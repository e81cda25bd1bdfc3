// SPDX-License-Identifier: MIT
#include "cpu/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/ops_kernels.h"

namespace sharpi::cpu {

const OpsTable kOpsAvx512 = make_ops_table();

}  // namespace sharpi::cpu
