// SPDX-License-Identifier: MIT
#include "cpu/x86/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/generic/attention_kernels.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {

const AttentionTable kAttentionAvx512 = make_attention_table();

}  // namespace sharpi::cpu
