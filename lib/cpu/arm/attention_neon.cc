// SPDX-License-Identifier: MIT
#include "cpu/arm/vec_neon.h"
// The vectors come first: the kernels are written over them.
#include "cpu/arm/kernel_tables.h"
#include "cpu/generic/attention_kernels.h"

namespace sharpi::cpu {

const AttentionTable kAttentionNeon = make_attention_table();

}  // namespace sharpi::cpu
