// SPDX-License-Identifier: MIT
#include "cpu/vec_avx2.h"
// The vectors come first: the kernels are written over them.
#include "cpu/delta_net_kernels.h"

namespace sharpi::cpu {

const DeltaTable kDeltaAvx2 = make_delta_table();

}  // namespace sharpi::cpu
