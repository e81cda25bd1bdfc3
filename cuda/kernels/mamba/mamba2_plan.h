// SPDX-License-Identifier: MIT
// Sizes of Mamba-2 layers that the kernels take. Plain C++. Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/host_device.h"

namespace sharpi::cuda {

struct Mamba2Shape {
  uint32_t n_heads = 0, n_groups = 0;
  uint32_t head_dim = 0;     // a multiple of 4
  uint32_t state_dim = 0;    // 16, 32, 64, 128 or 256
  uint32_t conv_kernel = 0;  // 2 to 4
  SHARPI_HOST_DEVICE uint32_t inner() const { return n_heads * head_dim; }
  SHARPI_HOST_DEVICE uint32_t group_dim() const { return n_groups * state_dim; }
  SHARPI_HOST_DEVICE uint32_t conv_dim() const { return inner() + 2 * group_dim(); }
  SHARPI_HOST_DEVICE uint32_t heads_of_group() const { return n_heads / n_groups; }
};

/// Whether the kernels take heads, states and convolutions of these sizes.
constexpr bool takes_mamba2(const Mamba2Shape& s) {
  const bool heads = s.n_groups != 0 && s.n_heads != 0 && s.n_heads % s.n_groups == 0;
  const bool state =
      s.state_dim >= 16 && s.state_dim <= 256 && (s.state_dim & (s.state_dim - 1)) == 0;
  return heads && state && s.head_dim != 0 && s.conv_kernel >= 2 && s.conv_kernel <= 4;
}

}  // namespace sharpi::cuda
