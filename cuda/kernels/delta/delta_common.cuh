// SPDX-License-Identifier: MIT
// What the kernels of the gated delta net share: the convolution of one channel, gates, norms, and
// the parts of the workspace.
// Thread rule: device code.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/delta/delta_net.h"
#include "cuda/kernels/delta/delta_plan.h"
#include "cuda/kernels/kv/kv_rows.cuh"

namespace sharpi::cuda {

/// The workspace of a call of several rows per sequence.
struct DeltaArgs {
  DeltaNetParams p;
  float* qkv;   // [n_rows][conv_dim] convolved; q and k normalised, q scaled
  float* gate;  // [n_rows][n_v_heads][2]: decay (chunks: its logarithm), beta
  float* kq;    // [n_rows][n_k_heads] k.q
  // Chunks only, else nullptr.
  __half *q16, *k16;  // [n_rows][key_dim], instead of q and k in `qkv`
  __half *u, *w;      // [chunk][v head][64][head_dim]
  __half* pairs;      // [chunk][v head][64][64]: P
  float* sums;        // [chunk][v head][64]: G
};

Status prepare_delta_chunks(const KernelConfig& config);
/// Heads of 128; n_chunks: of all sequences, at least.
Status launch_delta_chunks(const DeltaArgs& a, uint32_t n_chunks, bool pdl, cudaStream_t stream);

__device__ __forceinline__ float delta_warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  return v;
}
__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + expf(-x));
}
__device__ __forceinline__ float log_decay_of(const DeltaNetParams& p, float alpha, uint32_t head) {
  const float x = alpha + p.dt_bias[head];
  return p.a[head] * (x > 20.0f ? x : log1pf(expf(x)));
}
__device__ __forceinline__ float log_decay(const DeltaNetParams& p, uint64_t row, uint32_t head) {
  return log_decay_of(p, p.alpha[row * p.shape.n_v_heads + head], head);
}
__device__ __forceinline__ float write_strength_of(float beta) {
  return 1.0f / (1.0f + expf(-beta));
}
__device__ __forceinline__ float write_strength(const DeltaNetParams& p, uint64_t row,
                                                uint32_t head) {
  return write_strength_of(p.beta[row * p.shape.n_v_heads + head]);
}

/// One layer's planes of rows that are kept as they were projected, kept_rows rows each.
template <class T>
struct KeptPlanes {
  T *qkv, *alpha, *beta;
};
template <class T>
__device__ __forceinline__ KeptPlanes<T> kept_planes(const DeltaNetParams& p,
                                                     const BatchSequence& s, T* base) {
  T* qkv = base + p.kept_unit * s.kept_rows;
  T* alpha = qkv + uint64_t{s.kept_rows} * p.shape.conv_dim();
  return {qkv, alpha, alpha + uint64_t{s.kept_rows} * p.shape.n_v_heads};
}
__device__ __forceinline__ uint32_t pending_rows(const DeltaNetParams& p, const BatchSequence& s) {
  return p.drafts ? s.n_pending : 0;
}
__device__ __forceinline__ bool is_drafted(const DeltaNetParams& p, const BatchSequence& s) {
  return p.drafted && (s.flags & kSequenceDrafted) != 0;
}
/// The state that a call's rows start from, once a replay has run.
__device__ __forceinline__ const std::byte* first_state(const DeltaNetParams& p,
                                                        const BatchSequence& s) {
  return pending_rows(p, s) != 0 ? s.state_out : s.state_in;
}

/// A sequence's rows, those that were pending before them, and the conv tail before these.
struct ConvSource {
  const float* all;   // raw projections of the call's rows
  const float* rows;  // of the sequence's row 0
  const float* kept;  // [n_pending][conv_dim]
  const float* tail;  // [kernel - 1][conv_dim]
  uint32_t dim, kernel;
  int32_t n_pending;
};
__device__ __forceinline__ float raw_value(const ConvSource& s, int32_t index, uint32_t channel) {
  if (index >= 0) return s.rows[static_cast<uint64_t>(index) * s.dim + channel];
  index += s.n_pending;
  if (index >= 0) return s.kept[static_cast<uint64_t>(index) * s.dim + channel];
  return s.tail[(index + static_cast<int32_t>(s.kernel) - 1) * static_cast<int32_t>(s.dim) +
                static_cast<int32_t>(channel)];
}
__device__ __forceinline__ ConvSource conv_source(const DeltaNetParams& p, const BatchSequence& s) {
  const uint32_t n = pending_rows(p, s);
  return {p.qkv,
          p.qkv + uint64_t{s.first_row} * p.shape.conv_dim(),
          n == 0 ? nullptr : kept_planes(p, s, s.kept).qkv,
          reinterpret_cast<const float*>(s.state_in + p.conv_offset),
          p.shape.conv_dim(),
          p.shape.conv_kernel,
          static_cast<int32_t>(n)};
}

}  // namespace sharpi::cuda
