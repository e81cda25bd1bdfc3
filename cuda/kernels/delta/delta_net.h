// SPDX-License-Identifier: MIT
// Gated delta net (arXiv 2412.06464): causal depthwise convolution with SiLU, L2 norms of q and k,
// the gated delta rule, gated output norm.
//   per v-head h, its key head m, S in R^{dk x dv}:
//   S *= exp(g); d = beta * (v - S^T k); S += k d^T; o = S^T q; out = rms(o, norm) * silu(z)
// State per session: for each recurrent layer S per v-head [dv][dk] (row = value channel,
// contiguous over key channel) at state_offset, and the conv tail [conv_kernel - 1][conv_dim]
// (oldest row first, raw projections) at conv_offset, f32: the layout of the CPU tier. Reads the
// committed copy, writes the working copy in full. A sequence of 0 rows: nothing written.
// Where sessions may draft: rows that an earlier pass kept (n_pending of the sequence) are applied
// first, on the way into the registers that hold the state. Rows of a drafted sequence are kept as
// they were projected, and the working copy gets the state before them, or nothing where nothing
// was pending. All launchers check their arguments, allocate nothing and can be captured into a
// graph. Thread rule: pure functions.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "cuda/kernels/batch.h"
#include "cuda/kernels/products/matmul.h"

namespace sharpi::cuda {

struct DeltaNetShape {
  uint32_t n_k_heads = 0, n_v_heads = 0;
  uint32_t head_dim = 0;     // 32, 64 or 128
  uint32_t conv_kernel = 0;  // 2 to 4
  bool grouped = false;      // value heads of one key head follow each other; else key heads recur
  __host__ __device__ uint32_t key_of(uint32_t head) const {
    return grouped ? head / (n_v_heads / n_k_heads) : head % n_k_heads;
  }
  /// Of the value heads with one key head, the first.
  __host__ __device__ bool leads(uint32_t head) const {
    return grouped ? head % (n_v_heads / n_k_heads) == 0 : head < n_k_heads;
  }
  __host__ __device__ uint32_t key_dim() const { return n_k_heads * head_dim; }
  __host__ __device__ uint32_t value_dim() const { return n_v_heads * head_dim; }
  __host__ __device__ uint32_t conv_dim() const { return 2 * key_dim() + value_dim(); }
};

struct DeltaNetParams {
  Batch batch;
  DeltaNetShape shape;
  uint64_t state_offset = 0, conv_offset = 0;  // bytes in the session's state, multiples of 16
  const float* qkv = nullptr;                  // [n_rows][conv_dim] raw projections: q, k, v
  const float* z = nullptr;                    // [n_rows][value_dim] gate projection
  const float* alpha = nullptr;                // [n_rows][n_v_heads]
  const float* beta = nullptr;                 // [n_rows][n_v_heads], before the sigmoid
  const float* conv1d = nullptr;               // [conv_dim][conv_kernel], last tap = current row
  const float* dt_bias = nullptr;              // [n_v_heads]
  const float* a = nullptr;                    // [n_v_heads], already -exp(A_log)
  const float* norm = nullptr;                 // [head_dim]
  float eps = 1e-6f;
  /// A delta net of the same shape that follows, whose state, conv tail and convolution a step asks
  /// for meanwhile; next_conv1d == nullptr = none.
  const float* next_conv1d = nullptr;
  uint64_t next_state_offset = 0, next_conv_offset = 0;
  /// Sessions may draft: sequences may have rows pending. Else n_pending is not read.
  bool drafts = false;
  bool drafted = false;    // sequences may be drafted: each has few rows
  uint64_t kept_unit = 0;  // floats of a row of the kept planes of the layers before this one
  /// Only what is pending is applied: to the sequences of the batch, or to `sequence` alone.
  bool replay = false, alone = false;
  BatchSequence sequence = {};
  float* out = nullptr;            // [n_rows][value_dim]
  std::byte* workspace = nullptr;  // delta_net_workspace_bytes(), aligned to 256
  uint64_t workspace_bytes = 0;
};

/// Raises the shared-memory limits of the kernels, once per device before the first launch.
Status prepare_delta_net(const KernelConfig& config);
uint64_t delta_net_workspace_bytes(const DeltaNetShape& shape, uint32_t max_rows);
/// One launch when no sequence has more than one row (n_rows == n_sequences), else a few.
/// config: exact, deterministic (the recurrence whatever n_rows is), pdl are read.
Status launch_delta_net(const KernelConfig& config, const DeltaNetParams& p, cudaStream_t stream);
/// The pending rows of p.sequence alone: writes state and conv tail after them to the working copy.
/// Of p are read: shape, offsets, weights, kept_unit, sequence. n_pending 0: nothing is written.
Status launch_delta_replay(const KernelConfig& config, const DeltaNetParams& p,
                           cudaStream_t stream);

}  // namespace sharpi::cuda
