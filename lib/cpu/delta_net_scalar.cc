// SPDX-License-Identifier: MIT
#include "cpu/vec_scalar.h"
// The vectors come first: the kernels are written over them.
#include "cpu/delta_net_kernels.h"

namespace sharpi::cpu {

const DeltaTable kDeltaScalar = make_delta_table();

}  // namespace sharpi::cpu
