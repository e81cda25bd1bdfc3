// SPDX-License-Identifier: MIT
// The experts of one row inside moe_step.cu, one warp: which they are as soon as possible, their
// weights when there is time.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/moe_step.cuh"
#include "cuda/kernels/route_row.cuh"

namespace sharpi::cuda::step {

/// Order of the floats as unsigned integers, NaN below all, nothing 0.
__device__ __forceinline__ uint32_t order_key(float f) {
  const uint32_t b = __float_as_uint(f);
  const uint32_t key = b ^ (static_cast<uint32_t>(static_cast<int32_t>(b) >> 31) | 0x80000000u);
  return f == f ? key : 1u;
}

/// The n_used largest logits, of equals the lowest id: lane and place n hold expert 32 n + lane.
template <uint32_t kPerLane>
__device__ __forceinline__ void choose(const StepArgs& p, const View& v, uint32_t number) {
  uint64_t word[kPerLane], gate;
  bool here;
  do {
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) {
      const uint32_t id = min(n * 32 + v.lane, p.n_experts - 1);
      word[n] = look_at(p.logits + id);
    }
    gate = look_at(p.logits + p.router_rows - 1);
    here = is_of(gate, number);
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) here = here && is_of(word[n], number);
  } while (!__all_sync(~0u, here));

  uint32_t key[kPerLane];
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = n * 32 + v.lane;
    key[n] = id < p.n_experts ? order_key(value_of(word[n])) : 0u;
    v.misc->logits[id] = value_of(word[n]);
  }
#pragma unroll 1
  for (uint32_t j = 0; j < p.n_used; ++j) {
    uint32_t most = key[0];
#pragma unroll
    for (uint32_t n = 1; n < kPerLane; ++n) most = max(most, key[n]);
    const uint32_t best = __reduce_max_sync(~0u, most);
    uint32_t hits = 0;
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) hits |= key[n] == best ? 1u << n : 0u;
    const uint32_t n_hit = static_cast<uint32_t>(__ffs(static_cast<int>(hits))) - 1;
    const uint32_t lanes = __ballot_sync(~0u, hits != 0);
    bool mine = hits != 0;
    if ((lanes & (lanes - 1)) != 0) {
      const uint32_t id = n_hit * 32 + v.lane;
      mine = __reduce_min_sync(~0u, mine ? id : ~0u) == id && mine;
    }
    if (mine) v.misc->id[j] = static_cast<int32_t>(n_hit * 32 + v.lane);
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) key[n] = mine && n == n_hit ? 0u : key[n];
  }
  __syncwarp();
  if (v.lane < p.n_used) {
    const int32_t id = v.misc->id[v.lane];
    v.misc->slot[v.lane] = p.slot_of_expert != nullptr ? p.slot_of_expert[id] : id;
  }
  if (v.lane == 0) v.misc->weight[p.n_used] = p.shared_gate != nullptr ? value_of(gate) : 1.0f;
}

__device__ __forceinline__ void choose_experts(const StepArgs& p, const View& v, uint32_t number) {
  if (p.n_experts <= 256) {
    choose<8>(p, v, number);
  } else {
    choose<kMaxExperts / 32>(p, v, number);
  }
}

/// Softmax over all logits; weights of the chosen.
__device__ __forceinline__ void weigh_experts(const StepArgs& p, const View& v) {
  const auto part = [](float logit, float largest) {
    const float e = expf(logit - largest);
    return e >= 0.0f ? e : 0.0f;  // NaN ends here
  };
  const float largest = v.misc->logits[v.misc->id[0]];
  float sum = 0.0f;
  for (uint32_t i = v.lane; i < p.n_experts; i += 32) sum += part(v.misc->logits[i], largest);
  sum = fmaxf(warp_sum(sum), 0x1p-126f);
  const bool mine = v.lane < p.n_used;
  const int32_t id = mine ? v.misc->id[v.lane] : 0;
  float weight = mine ? part(v.misc->logits[id], largest) / sum : 0.0f;
  if (p.renormalize) weight /= fmaxf(warp_sum(weight), 0x1p-14f);
  if (!mine) return;
  v.misc->weight[v.lane] = weight;
  if (blockIdx.x == 0) {
    p.ids[v.lane] = id;
    p.weights[v.lane] = weight;
  }
}

}  // namespace sharpi::cuda::step
