// SPDX-License-Identifier: MIT
// The experts of one row inside moe_step.cu. Which they are, as soon as possible: a warp each takes
// the largest of 32 logits, then every warp for itself the largest of those. Their weights are made
// later, while there is time.
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
__device__ __forceinline__ uint64_t await_word(const uint64_t* from, uint32_t number) {
  uint64_t word;
  do {
    word = look_at(from);
  } while (!is_whole_of(word, number));
  return word;
}

/// One warp: the n_used largest of experts 32 chunk ..., of equals the lower id first.
__device__ __forceinline__ void leave_candidates(const StepArgs& p, const View& v, uint32_t chunk,
                                                 uint32_t number) {
  const uint32_t id = chunk * 32 + v.lane;
  uint32_t key = 0;
  if (id < p.n_experts) {
    const float logit = whole_value(await_word(p.logits + id, number));
    v.misc->logits[id] = logit;
    key = order_key(logit);
  }
  __syncwarp();
#pragma unroll 1
  for (uint32_t j = 0; j < p.n_used; ++j) {
    const uint32_t best = __reduce_max_sync(~0u, key);
    const uint32_t lanes = __ballot_sync(~0u, key == best);
    if ((lanes & -lanes) != 1u << v.lane) continue;
    v.misc->key[chunk * p.n_used + j] = best;
    v.misc->candidate[chunk * p.n_used + j] = id;
    key = 0;
  }
}

/// Every warp: the j-th of the experts in lane j.
template <uint32_t kPerLane>
__device__ __forceinline__ uint32_t pick(const StepArgs& p, const View& v) {
  const uint32_t all = (p.n_experts + 31) / 32 * p.n_used;
  uint32_t key[kPerLane], mine = 0;
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t c = n * 32 + v.lane;
    key[n] = c < all ? v.misc->key[c] : 0u;
  }
#pragma unroll 1
  for (uint32_t j = 0; j < p.n_used; ++j) {
    uint32_t most = key[0];
#pragma unroll
    for (uint32_t n = 1; n < kPerLane; ++n) most = max(most, key[n]);
    const uint32_t best = __reduce_max_sync(~0u, most);
    uint32_t at = ~0u;  // of equals the first
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) {
      const uint32_t lanes = __ballot_sync(~0u, key[n] == best);
      const uint32_t c = n * 32 + static_cast<uint32_t>(__ffs(static_cast<int>(lanes))) - 1;
      at = at == ~0u && lanes != 0 ? c : at;
    }
    if (v.lane == j) mine = at;
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) key[n] = n * 32 + v.lane == at ? 0u : key[n];
  }
  return v.misc->candidate[mine];
}

/// The expert that lane j of every warp keeps; where its matrices are goes to shared memory.
__device__ __forceinline__ uint32_t choose_expert(const StepArgs& p, const View& v) {
  const uint32_t all = (p.n_experts + 31) / 32 * p.n_used;
  const uint32_t id = all <= 64 ? pick<2>(p, v) : pick<kMaxExperts / 32>(p, v);
  if (v.lane < p.n_used) {
    v.misc->slot[v.warp * kMaxExpertsUsed + v.lane] =
        p.slot_of_expert != nullptr ? p.slot_of_expert[id] : static_cast<int32_t>(id);
  }
  __syncwarp();
  return id;
}

/// Weights of the experts: the j-th in lane j, and that of the shared one.
struct Weights {
  float routed, shared;
};

/// Softmax over all logits.
__device__ __forceinline__ Weights weigh_experts(const StepArgs& p, const View& v, uint32_t id,
                                                 uint32_t number) {
  Weights w = {0.0f, 1.0f};
  if (p.shared_gate != nullptr) {
    const float dot = whole_value(await_word(p.logits + p.n_experts, number));
    w.shared = 1.0f / (1.0f + __expf(-dot));
  }
  const bool mine = v.lane < p.n_used;
  const float logit = mine ? v.misc->logits[id] : -INFINITY;
  const float largest = __shfl_sync(~0u, logit, 0);
  const auto part = [&](float f) {
    const float e = __expf(f - largest);
    return e >= 0.0f ? e : 0.0f;  // NaN ends here
  };
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t i = v.lane; i < p.n_experts; i += 32) sum += part(v.misc->logits[i]);
  sum = fmaxf(warp_sum(sum), 0x1p-126f);
  w.routed = mine ? __fdividef(part(logit), sum) : 0.0f;
  if (p.renormalize) w.routed = __fdividef(w.routed, fmaxf(warp_sum(w.routed), 0x1p-14f));
  if (mine && blockIdx.x == 0 && v.warp == 0) {
    p.ids[v.lane] = static_cast<int32_t>(id);
    p.weights[v.lane] = w.routed;
  }
  return w;
}

}  // namespace sharpi::cuda::step
