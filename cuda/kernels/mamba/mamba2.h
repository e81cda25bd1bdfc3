// SPDX-License-Identifier: MIT
// Mamba-2 (arXiv 2405.21060): causal depthwise convolution with SiLU, the recurrence of its state
// space row by row, gate and norm.
//   per head h, the B and C of its group, S in R^{dim x state}:
//   dt = softplus(dt + bias); S = e^{a dt} S + dt x B^T; o = S C + d x
//   out = rms over a group's channels (o * silu(z)) * norm
// State per session: for each layer S per head [dim][state] at state_offset, and the conv tail
// [conv_kernel - 1][conv_dim] (oldest row first, raw projections) at conv_offset, f32: the layout
// of the CPU tier. Reads the committed copy, writes the working copy in full. A sequence of 0 rows:
// nothing written. Where sessions may draft: rows that an earlier pass kept (n_pending of the
// sequence) are applied first. Rows of a drafted sequence are kept as they were projected, and the
// working copy gets the state before them, or nothing where nothing was pending. A row's sums have
// one order, whatever is beside it. Launchers check their arguments, allocate nothing and can be
// captured into a graph. Thread rule: pure functions.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/batch.h"
#include "cuda/kernels/kernel_config.h"
#include "cuda/kernels/mamba/mamba2_plan.h"

namespace sharpi::cuda {

struct Mamba2Params {
  Batch batch;
  Mamba2Shape shape;
  uint64_t state_offset = 0, conv_offset = 0;  // bytes in the session's state, multiples of 16
  const float* xbc = nullptr;                  // [n_rows][conv_dim] raw projections: x, B, C
  const float* z = nullptr;                    // [n_rows][inner] gate projection
  const float* dt = nullptr;                   // [n_rows][n_heads]
  const float* conv1d = nullptr;               // [conv_dim][conv_kernel], last tap = current row
  const float* conv_bias = nullptr;            // [conv_dim]; nullptr = none
  const float* dt_bias = nullptr;              // [n_heads]
  const float* a = nullptr;                    // [n_heads], already -exp(A_log)
  const float* d = nullptr;                    // [n_heads]
  const float* norm = nullptr;                 // [inner]
  float eps = 1e-5f;
  /// Sessions may draft: sequences may have rows pending. Else n_pending is not read.
  bool drafts = false;
  bool drafted = false;    // sequences may be drafted
  uint64_t kept_unit = 0;  // floats of a row of the kept planes of the layers before this one
  /// Only what is pending is applied, to `sequence` alone.
  bool replay = false;
  BatchSequence sequence = {};
  float* out = nullptr;  // [n_rows][inner]
};

/// Two launches. Of config pdl is read.
Status launch_mamba2(const KernelConfig& config, const Mamba2Params& p, cudaStream_t stream);
/// The pending rows of p.sequence alone: writes state and conv tail after them to the working copy.
/// Of p are read: shape, offsets, weights, kept_unit, sequence. n_pending 0: nothing is written.
Status launch_mamba2_replay(const Mamba2Params& p, cudaStream_t stream);

}  // namespace sharpi::cuda
