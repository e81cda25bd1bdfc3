// SPDX-License-Identifier: MIT
// The convolution in front of a recurrence, as kernels take it. Kernel files have flags of their
// own, so only plain data here. Thread rule: a job is run by one thread on memory of its own.
#pragma once

#include <cstdint>

namespace sharpi::cpu {

/// Convolution and SiLU of some channels, in place, all rows; the state is the last kernel - 1 raw
/// rows.
struct ShortConv {
  float* x = nullptr;  // [n_rows][x_stride]
  uint64_t x_stride = 0;
  const float* taps = nullptr;     // [dim][kernel]
  const float* bias = nullptr;     // [dim]; null: none
  const float* tail_in = nullptr;  // [kernel - 1][tail_stride], oldest first
  float* tail_out = nullptr;       // may be tail_in; null: not kept
  uint64_t tail_stride = 0;
  uint32_t dim = 0, kernel = 0, n_rows = 0;
  bool normalize = false;  // afterwards: x *= norm_scale / max(|x|, eps)
  float norm_scale = 1.0f, eps = 0.0f;
  float* work = nullptr;  // [2 * kernel][dim]
};

}  // namespace sharpi::cpu
