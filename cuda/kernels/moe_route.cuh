// SPDX-License-Identifier: MIT
// The experts of one row inside moe_step.cu, by one warp: which they are, as soon as possible; what
// they weigh, a little later.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/moe_step.cuh"

namespace sharpi::cuda::step {

/// Order of the floats as unsigned integers, NaN below all, nothing 0.
__device__ __forceinline__ uint32_t order_key(float f) {
  const uint32_t b = __float_as_uint(f);
  const uint32_t key = b ^ (static_cast<uint32_t>(static_cast<int32_t>(b) >> 31) | 0x80000000u);
  return f == f ? key : 1u;
}
/// The float of a key; of a NaN some NaN.
__device__ __forceinline__ float key_value(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000u : ~0u));
}
__device__ __forceinline__ uint64_t await_word(const uint64_t* from, uint32_t number) {
  uint64_t word;
  do {
    word = look_at(from);
  } while (!is_whole_of(word, number));
  return word;
}

/// Logits of experts lane * kPerLane ...; -inf where there are no more.
template <uint32_t kPerLane>
__device__ __forceinline__ void await_logits(const StepArgs& p, uint32_t lane, uint32_t number,
                                             float (&logit)[kPerLane]) {
  const uint32_t first = lane * kPerLane;
  bool there;
  do {
    ulonglong2 word[kPerLane / 2];
#pragma unroll
    for (uint32_t k = 0; k < kPerLane / 2; ++k) {
      word[k] = {};
      if (first + 2 * k < p.n_experts) word[k] = look_at_two(p.logits + first + 2 * k);
    }
    there = true;
#pragma unroll
    for (uint32_t k = 0; k < kPerLane / 2; ++k) {
      const uint32_t id = first + 2 * k;
      there = there && (id >= p.n_experts || is_whole_of(word[k].x, number)) &&
              (id + 1 >= p.n_experts || is_whole_of(word[k].y, number));
      logit[2 * k] = id < p.n_experts ? whole_value(word[k].x) : -INFINITY;
      logit[2 * k + 1] = id + 1 < p.n_experts ? whole_value(word[k].y) : -INFINITY;
    }
  } while (!there);
  __syncwarp();
}

struct Chosen {
  uint32_t id;
  float logit;
};

/// Where the experts lane * kPerLane ... are.
template <uint32_t kPerLane>
__device__ __forceinline__ void load_slots(const StepArgs& p, uint32_t lane,
                                           int32_t (&slot)[kPerLane]) {
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = lane * kPerLane + n;
    slot[n] = static_cast<int32_t>(id);
    if (p.slot_of_expert != nullptr && id < p.n_experts) slot[n] = __ldcg(p.slot_of_expert + id);
  }
}
/// The n_used largest, of equals the lower id first: the j-th in lane j.
template <uint32_t kPerLane>
__device__ __forceinline__ Chosen choose_experts(const StepArgs& p, const View& v,
                                                 const float (&logit)[kPerLane],
                                                 const int32_t (&slot)[kPerLane]) {
  uint32_t key[kPerLane];
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n)
    key[n] = v.lane * kPerLane + n < p.n_experts ? order_key(logit[n]) : 0u;
  Chosen chosen = {0, -INFINITY};
#pragma unroll 1
  for (uint32_t j = 0; j < p.n_used; ++j) {
    uint32_t most[kPerLane];
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) most[n] = key[n];
#pragma unroll
    for (uint32_t d = kPerLane / 2; d > 0; d /= 2) {
#pragma unroll
      for (uint32_t n = 0; n < d; ++n) most[n] = max(most[n], most[n + d]);
    }
    const uint32_t best = __reduce_max_sync(~0u, most[0]);
    const uint32_t lanes = __ballot_sync(~0u, most[0] == best), winner = lanes & -lanes;
    bool mine = winner == 1u << v.lane;
    uint32_t at = 0;
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) {  // the first of equals
      const bool is = mine && key[n] == best;
      mine = mine && !is;
      at = is ? n : at;
      key[n] = is ? 0u : key[n];
      if (is) v.misc->slot[j] = slot[n];
    }
    const int from = __ffs(static_cast<int>(winner)) - 1;
    const uint32_t id = __shfl_sync(~0u, v.lane * kPerLane + at, from);
    if (v.lane == j) chosen = {id, key_value(best)};
  }
  mbarrier_arrive(shared_address(&v.slots->chosen));
  return chosen;
}

/// Softmax over all logits: weights of the experts, and of the shared one.
template <uint32_t kPerLane>
__device__ __forceinline__ void weigh_experts(const StepArgs& p, const View& v,
                                              const float (&logit)[kPerLane], const Chosen& chosen,
                                              uint32_t number) {
  const float largest = __shfl_sync(~0u, chosen.logit, 0);
  const auto part = [&](float f) {
    const float e = __expf(f - largest);
    return e >= 0.0f ? e : 0.0f;  // NaN ends here
  };
  float sum = 0.0f;
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) sum += part(logit[n]);
  sum = fmaxf(warp_sum(sum), 0x1p-126f);
  float weight = v.lane < p.n_used ? __fdividef(part(chosen.logit), sum) : 0.0f;
  if (p.renormalize) weight = __fdividef(weight, fmaxf(warp_sum(weight), 0x1p-14f));
  if (v.lane < p.n_used) {
    v.misc->weight[v.lane] = weight;
    if (blockIdx.x == 0) {
      p.ids[v.lane] = static_cast<int32_t>(chosen.id);
      p.weights[v.lane] = weight;
    }
  }
  if (v.lane == 0) {
    float shared = 1.0f;
    if (p.shared_gate != nullptr) {
      const float dot = whole_value(await_word(p.logits + p.n_experts, number));
      shared = 1.0f / (1.0f + __expf(-dot));
    }
    v.misc->shared_weight = shared;
  }
  mbarrier_arrive(shared_address(&v.slots->weighed));
}

/// The warp that chooses.
template <uint32_t kPerLane>
__device__ __forceinline__ void route(const StepArgs& p, const View& v) {
  grid_dependency_wait();
  const uint32_t number = __ldcg(p.sync + blockIdx.x) + 1;
  int32_t slot[kPerLane];
  load_slots<kPerLane>(p, v.lane, slot);
  float logit[kPerLane];
  await_logits<kPerLane>(p, v.lane, number, logit);
  const Chosen chosen = choose_experts<kPerLane>(p, v, logit, slot);
  weigh_experts<kPerLane>(p, v, logit, chosen, number);
  grid_dependents_launch();  // all blocks have begun
}

}  // namespace sharpi::cuda::step
