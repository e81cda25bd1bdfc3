// SPDX-License-Identifier: MIT
#include "cpu/generic/vec_scalar.h"
// The vectors come first: the kernels are written over them.
#include "cpu/generic/attention_kernels.h"
#include "cpu/generic/kernel_tables.h"

namespace sharpi::cpu {

const AttentionTable kAttentionScalar = make_attention_table();

}  // namespace sharpi::cpu
