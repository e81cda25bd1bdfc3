// SPDX-License-Identifier: MIT
#include "cpu/x86/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/generic/mamba2_kernels.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {

const Mamba2Table kMamba2Avx512 = make_mamba2_table();

}  // namespace sharpi::cpu
