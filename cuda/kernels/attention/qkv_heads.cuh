// SPDX-License-Identifier: MIT
// What happens to one head of a projected row: norm and rotary embedding, in shared memory.
// Thread rule: device code.
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "cuda/kernels/attention/qkv.h"

namespace sharpi::cuda {

__device__ __forceinline__ float head_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, d);
  return v;
}

/// 1 / rms of n floats in global memory, summed by the whole block in a fixed order.
__device__ __forceinline__ float block_inverse_rms(const float* x, uint32_t n, float eps) {
  __shared__ float parts[32];
  float s = 0.0f;
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) s = fmaf(x[i], x[i], s);
  s = head_sum(s);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = s;
  __syncthreads();
  float all = 0.0f;
  for (uint32_t i = 0; i < blockDim.x / 32; ++i) all += parts[i];
  __syncthreads();
  return 1.0f / sqrtf(all / static_cast<float>(n) + eps);
}

/// x := x * r * weight, where r = 1 / rms of the head if it is not given. One warp.
__device__ __forceinline__ void norm_head(float* x, uint32_t dim, const float* weight, float r,
                                          bool own_rms, float eps) {
  const uint32_t lane = threadIdx.x % 32;
  if (own_rms) {
    float s = 0.0f;
    for (uint32_t i = lane; i < dim; i += 32) s = fmaf(x[i], x[i], s);
    r = 1.0f / sqrtf(head_sum(s) / static_cast<float>(dim) + eps);
  }
  for (uint32_t i = lane; i < dim; i += 32) {
    const float v = x[i] * r;
    x[i] = weight != nullptr ? v * weight[i] : v;
  }
  __syncwarp();
}

/// What the queries of a position are multiplied by.
__device__ __forceinline__ float query_factor(const QkvParams& p, uint64_t position) {
  if (p.temperature == 0.0f) return 1.0f;
  return fmaf(p.temperature, log1pf(static_cast<float>(position / p.temperature_rows)), 1.0f);
}

/// Pairs j, j + n_half, or 2j, 2j + 1.
__device__ __forceinline__ void rotate_head(float* x, uint32_t n_half, bool neighbours,
                                            const float* cos, const float* sin) {
  for (uint32_t j = threadIdx.x % 32; j < n_half; j += 32) {
    float* const low = x + (neighbours ? 2 * j : j);
    float* const high = low + (neighbours ? 1 : n_half);
    const float a = *low, b = *high, c = cos[j], s = sin[j];
    *low = fmaf(-b, s, a * c);
    *high = fmaf(a, s, b * c);
  }
  __syncwarp();
}

/// Where the rotated queries of a row are captured, or null. `offset`: QkvParams::query_offset.
__device__ __forceinline__ float* captured_queries(int64_t offset, const BatchRow& br,
                                                   const BatchSequence& s, uint64_t width) {
  if (offset < 0 || s.queries == nullptr || br.index + s.query_rows < s.n_rows) {
    return nullptr;
  }
  const uint32_t skip = s.n_rows > s.query_rows ? s.n_rows - s.query_rows : 0;
  const uint64_t slot = s.flags & kSequenceQueryRing ? br.position % s.query_rows : br.index - skip;
  return s.queries + static_cast<uint64_t>(offset) * s.query_rows + slot * width;
}

}  // namespace sharpi::cuda
