// SPDX-License-Identifier: MIT
// Rows of drafts that were accepted after an earlier pass had kept their inputs, now applied to the
// state, with the order of sums that the recurrence of many rows has; for deterministic models,
// whose bits must not depend on how rows were read.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/delta/delta_rows.cuh"

namespace sharpi::cuda {
namespace {

/// A pending row of one head, convolved.
template <int kDim>
struct alignas(16) ReplayRow {
  float k[kDim], q[kDim];
  float v[kStateRows];
  float gate[2];  // decay, beta
  float kq;
};

/// What is pending, with the sums of the three launches above: the first warp convolves a key head
/// and its query, the second the block's values. Two rows take turns in shared memory, so one
/// barrier a row is enough.
template <int kDim>
__global__ void __launch_bounds__(kScanThreads)
    delta_replay_kernel(const __grid_constant__ DeltaNetParams p) {
  constexpr int kPer = kDim / 32;
  __shared__ __align__(16) ReplayRow<kDim> rows[2];
  grid_dependents_launch();
  grid_dependency_wait();
  const BatchSequence s = p.alone ? p.sequence : p.batch.table.sequences[blockIdx.z];
  const uint32_t n = s.n_pending;
  if (n == 0) return;
  const uint32_t head = blockIdx.x, j0 = blockIdx.y * kStateRows, key = p.shape.key_of(head);
  const uint32_t lane = threadIdx.x % 8, j = threadIdx.x / 8 * 4, warp_lane = threadIdx.x % 32;
  const bool keys = threadIdx.x < 32;
  const uint64_t at = (uint64_t{head} * kDim + j0 + j) * kDim;
  StateTile<kDim> state;
  state.load(reinterpret_cast<const float*>(s.state_in + p.state_offset) + at);
  const KeptPlanes<const float> kept = kept_planes(p, s, s.kept);
  const uint32_t key_dim = p.shape.key_dim(), n_v = p.shape.n_v_heads;
  ConvSource source = conv_source(p, s);
  source.all = kept.qkv;
  source.n_pending = static_cast<int32_t>(n);
  source.kept = kept.qkv;
  ConvHead<kDim> query, other;
  ConvHead<kStateRows> value;
  if (keys) {
    query.start(p, key * kDim);
    other.start(p, key_dim + key * kDim);
    query.seek(source, -source.n_pending);
    other.seek(source, -source.n_pending);
  } else {
    value.start(p, 2 * key_dim + head * kDim + j0);
    value.seek(source, -source.n_pending);
  }
  for (uint32_t t = 0; t < n; ++t) {
    ReplayRow<kDim>& row = rows[t % 2];
    if (keys) {
      float x[kPer], k[kPer];
      query.next(source, t, x);
      other.next(source, t, k);
      const float fq = rsqrtf(static_cast<float>(kDim)) / fmaxf(sqrtf(dot_head<kDim>(x, x)), p.eps);
      const float fk = 1.0f / fmaxf(sqrtf(dot_head<kDim>(k, k)), p.eps);
#pragma unroll
      for (int i = 0; i < kPer; ++i) x[i] *= fq, k[i] *= fk;
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        row.q[warp_lane + 32u * static_cast<uint32_t>(i)] = x[i];
        row.k[warp_lane + 32u * static_cast<uint32_t>(i)] = k[i];
      }
      const float kq = dot_head<kDim>(x, k);
      if (warp_lane == 0) row.kq = kq;
    } else {
      float v[1];
      value.next(source, t, v);
      row.v[warp_lane] = v[0];
      if (warp_lane == 0) row.gate[0] = expf(log_decay_of(p, kept.alpha[t * n_v + head], head));
      if (warp_lane == 1) row.gate[1] = write_strength_of(kept.beta[t * n_v + head]);
    }
    __syncthreads();
    static_cast<void>(
        state.advance(row.k, row.q, row.v[j + lane % 4], row.gate[0], row.gate[1], row.kq));
  }
  state.store(reinterpret_cast<float*>(s.state_out + p.state_offset) + at);
  auto* tail = reinterpret_cast<float*>(s.state_out + p.conv_offset);
  if (!keys) value.store_tail(source, tail);
  if (keys && blockIdx.y == 0 && p.shape.leads(head)) {
    query.store_tail(source, tail);
    other.store_tail(source, tail);
  }
}

}  // namespace
}  // namespace sharpi::cuda
