// SPDX-License-Identifier: MIT
// A delta net's shape for kernels, of what the file says: every field that they read stands here
// once. Thread rule: pure function.
#pragma once

#include "cuda/kernels/delta/delta_net.h"
#include "model/model_spec.h"

namespace sharpi::cuda {

inline DeltaNetShape delta_shape(const DeltaNetSpec& d) {
  return {d.n_k_heads, d.n_v_heads, d.head_dim, d.conv_kernel, d.grouped};
}

}  // namespace sharpi::cuda
