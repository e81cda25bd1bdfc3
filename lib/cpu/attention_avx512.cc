// SPDX-License-Identifier: MIT
#include "cpu/vec_avx512.h"
// The vectors come first: the kernels are written over them.
#include "cpu/attention_kernels.h"

namespace sharpi::cpu {

const AttentionTable kAttentionAvx512 = make_attention_table();

}  // namespace sharpi::cpu
