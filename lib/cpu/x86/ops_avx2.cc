// SPDX-License-Identifier: MIT
#include "cpu/x86/vec_avx2.h"
// The vectors come first: the kernels are written over them.
#include "cpu/generic/ops_kernels.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {

const OpsTable kOpsAvx2 = make_ops_table();

}  // namespace sharpi::cpu
