// SPDX-License-Identifier: MIT
// The shape of a Mamba-2 mixer for kernels, of what the file says: every field that they read
// stands here once. Thread rule: pure function.
#pragma once

#include "cuda/kernels/mamba/mamba2_plan.h"
#include "model/model_spec.h"

namespace sharpi::cuda {

inline Mamba2Shape mamba2_shape(const Mamba2Spec& m) {
  return {m.n_heads, m.n_groups, m.head_dim, m.state_dim, m.conv_kernel};
}

}  // namespace sharpi::cuda
