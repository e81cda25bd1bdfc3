// SPDX-License-Identifier: MIT
// The gated delta net of one row per session, in one launch: a block per head and session holds the
// head's state in registers, convolves its own channels, and applies norm and gate.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/delta_common.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kDecodeThreads = 512, kDecodeWarps = kDecodeThreads / 32;

template <int kDim>
struct DecodeShared {
  float q[kDim], k[kDim], v[kDim], o[kDim];
  float kq, sum;
};

/// The channel of a thread (q, k, v in turn; threads past 3 * kDim have none) and its taps.
template <int kDim>
struct DecodeChannel {
  uint32_t part, channel;
  float taps[4];
  __device__ __forceinline__ DecodeChannel(const DeltaNetParams& p, uint32_t head) {
    part = threadIdx.x / kDim;
    const uint32_t c = threadIdx.x % kDim, key = head % p.shape.n_k_heads;
    channel = part == 2 ? 2 * p.shape.key_dim() + head * kDim + c
                        : part * p.shape.key_dim() + key * kDim + c;
    const uint32_t kernel = p.shape.conv_kernel;
#pragma unroll
    for (uint32_t t = 0; t < 4; ++t) {
      const bool used = part < 3 && t + kernel >= 4;
      taps[t] = used ? p.conv1d[channel * kernel + t + kernel - 4] : 0.0f;
    }
  }
};

template <int kDim>
__device__ __forceinline__ void decode_conv(const DeltaNetParams& p, const BatchSequence& s,
                                            uint32_t head, const DecodeChannel<kDim>& mine,
                                            DecodeShared<kDim>* sh) {
  const ConvSource source = conv_source(p, s);
  if (mine.part < 3) {
    float x[4] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const bool used = t + static_cast<int>(source.kernel) >= 4;
      if (used) x[t] = raw_value(source, t - 3, mine.channel);
    }
    float y = mine.taps[0] * x[0];
#pragma unroll
    for (int t = 1; t < 4; ++t) y = fmaf(mine.taps[t], x[t], y);
    float* to = mine.part == 0 ? sh->q : mine.part == 1 ? sh->k : sh->v;
    to[threadIdx.x % kDim] = silu(y);
    if (mine.part == 2 || head < p.shape.n_k_heads) {
      auto* tail = reinterpret_cast<float*>(s.state_out + p.conv_offset) + mine.channel;
#pragma unroll
      for (uint32_t t = 0; t < 3; ++t) {
        if (t + source.kernel >= 4) tail[(t + source.kernel - 4) * source.dim] = x[t + 1];
      }
    }
  }
  __syncthreads();
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < 2) {
    float* x = warp == 0 ? sh->q : sh->k;
    float sum = 0.0f;
    for (uint32_t c = lane; c < kDim; c += 32) sum = fmaf(x[c], x[c], sum);
    const float norm = fmaxf(sqrtf(delta_warp_sum(sum)), p.eps);
    const float f = (warp == 0 ? rsqrtf(static_cast<float>(kDim)) : 1.0f) / norm;
    for (uint32_t c = lane; c < kDim; c += 32) x[c] *= f;
  }
  __syncthreads();
  if (warp == 0) {
    float sum = 0.0f;
    for (uint32_t c = lane; c < kDim; c += 32) sum = fmaf(sh->k[c], sh->q[c], sum);
    sum = delta_warp_sum(sum);
    if (lane == 0) sh->kq = sum;
  }
  __syncthreads();
}

template <int kDim>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    delta_decode_kernel(const __grid_constant__ DeltaNetParams p) {
  constexpr int kRows = kDim / static_cast<int>(kDecodeWarps), kPer = kDim / 32;
  __shared__ DecodeShared<kDim> sh;
  grid_dependents_launch();
  const uint32_t head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const DecodeChannel<kDim> channel(p, head);
  const float weight = threadIdx.x < kDim ? p.norm[threadIdx.x] : 0.0f;
  grid_dependency_wait();
  const BatchSequence s = p.batch.table.sequences[blockIdx.y];
  if (s.n_rows == 0) return;
  const uint64_t row = s.first_row, at = uint64_t{head} * kDim * kDim;
  const float* from = reinterpret_cast<const float*>(s.state_in + p.state_offset) + at;
  float* to = reinterpret_cast<float*>(s.state_out + p.state_offset) + at;
  struct alignas(kPer * 4) Part {
    float x[kPer];
  };
  Part state[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    state[r] = reinterpret_cast<const Part*>(from + (warp * kRows + r) * kDim)[lane];
  }
  const float decay = expf(log_decay(p, row, head)), beta = write_strength(p, row, head);
  const uint64_t out = row * p.shape.value_dim() + head * kDim + threadIdx.x;
  const float gate = threadIdx.x < kDim ? p.z[out] : 0.0f;
  decode_conv<kDim>(p, s, head, channel, &sh);
  const Part k = reinterpret_cast<const Part*>(sh.k)[lane],
             q = reinterpret_cast<const Part*>(sh.q)[lane];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint32_t j = warp * kRows + r;
    float sk = 0.0f, sq = 0.0f;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      sk = fmaf(state[r].x[i], k.x[i], sk);
      sq = fmaf(state[r].x[i], q.x[i], sq);
    }
    sk = delta_warp_sum(sk);
    sq = delta_warp_sum(sq);
    const float d = beta * (sh.v[j] - decay * sk);
    if (lane == 0) sh.o[j] = fmaf(d, sh.kq, decay * sq);
    Part next;
#pragma unroll
    for (int i = 0; i < kPer; ++i) next.x[i] = fmaf(d, k.x[i], decay * state[r].x[i]);
    reinterpret_cast<Part*>(to + j * kDim)[lane] = next;
  }
  __syncthreads();
  if (warp == 0) {
    float sum = 0.0f;
    for (uint32_t c = lane; c < kDim; c += 32) sum = fmaf(sh.o[c], sh.o[c], sum);
    sum = delta_warp_sum(sum);
    if (lane == 0) sh.sum = 1.0f / sqrtf(sum / static_cast<float>(kDim) + p.eps);
  }
  __syncthreads();
  if (threadIdx.x < kDim) p.out[out] = sh.o[threadIdx.x] * sh.sum * weight * silu(gate);
}

}  // namespace
}  // namespace sharpi::cuda
