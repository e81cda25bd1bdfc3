// SPDX-License-Identifier: MIT
// Softmax and top-k of one row of router logits by one warp: what router.cu and moe_step.cu do.
// Thread rule: device code.
#pragma once

#include <cmath>
#include <cstdint>

namespace sharpi::cuda {

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, d));
  return v;
}
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  return v;
}

/// An expert and its weight: lane j of the warp holds the j-th of n_used.
struct Choice {
  uint32_t id;
  float weight;
};

/// v: logits n * 32 + lane, at most 32 * kPerLane of them.
template <uint32_t kPerLane>
__device__ __forceinline__ Choice route_row(float (&v)[kPerLane], uint32_t n_experts,
                                            uint32_t n_used, bool renormalize, uint32_t lane) {
  float largest = -INFINITY;
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    if (n * 32 + lane >= n_experts) v[n] = -INFINITY;
    largest = fmaxf(largest, v[n]);
  }
  largest = warp_max(largest);
  float sum = 0.0f;
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const float e = expf(v[n] - largest);
    v[n] = e >= 0.0f ? e : 0.0f;  // NaN ends here
    sum += v[n];
  }
  sum = warp_sum(sum);

  // Probabilities are never negative, so their bits order them. Key 0 is taken or no expert.
  uint32_t key[kPerLane], most, at;  // the lane's largest, and whose it is: of equals the lowest
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const float p = v[n] / sum;
    key[n] = n * 32 + lane < n_experts ? __float_as_uint(p >= 0.0f ? p : 0.0f) + 1 : 0;
  }
  const auto find = [&] {
    most = key[0];
    at = lane;
#pragma unroll
    for (uint32_t n = 1; n < kPerLane; ++n) {
      at = key[n] > most ? n * 32 + lane : at;
      most = max(most, key[n]);
    }
  };
  find();
  float chosen = 0.0f, total = 0.0f;
  uint32_t chosen_id = 0;
  for (uint32_t j = 0; j < n_used; ++j) {
    const uint32_t best = __reduce_max_sync(~0u, most);
    const uint32_t id = __reduce_min_sync(~0u, most == best ? at : ~0u);
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) key[n] = n * 32 + lane == id ? 0 : key[n];
    find();
    const float prob = __uint_as_float(best - 1);
    total += prob;  // in the order of the ids, as the CPU adds them
    if (lane == j) {
      chosen = prob;
      chosen_id = id;
    }
  }
  return {chosen_id, renormalize ? chosen / fmaxf(total, 0x1p-14f) : chosen};
}

}  // namespace sharpi::cuda
