// SPDX-License-Identifier: MIT
#include "cpu/vec_scalar.h"
// The vectors come first: the kernels are written over them.
#include "cpu/attention_kernels.h"

namespace sharpi::cpu {

const AttentionTable kAttentionScalar = make_attention_table();

}  // namespace sharpi::cpu
