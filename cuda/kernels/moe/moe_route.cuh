// SPDX-License-Identifier: MIT
// The experts of a row inside moe_step.cu, by one warp each: which they are, as soon as possible;
// what they weigh, a little later.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/moe/moe_units.cuh"

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
/// Logits of experts lane * kPerLane ...; -inf where there are no more.
template <uint32_t kPerLane, uint32_t kRows>
__device__ __forceinline__ void await_logits(const StepArgs& p, const View<kRows>& v,
                                             uint32_t number, float (&logit)[kPerLane]) {
  const uint32_t first = v.lane * kPerLane;
  bool there;
  do {
    uint64_t word[kPerLane];
#pragma unroll
    for (uint32_t k = 0; k < kPerLane; ++k) {
      word[k] = 0;
      if (first + k < p.n_experts) word[k] = look_at(logit_of(p, v, first + k, number));
    }
    there = true;
#pragma unroll
    for (uint32_t k = 0; k < kPerLane; ++k) {
      there = there && (first + k >= p.n_experts || has_parts(word[k], p.n_parts));
      logit[k] = first + k < p.n_experts ? sum_of_parts(word[k]) : -INFINITY;
    }
  } while (!there);
  __syncwarp();
}

struct Chosen {
  uint32_t id;
  float logit;
};

/// An expert's number and the place of its matrices as one number (0: it has no place).
__device__ __forceinline__ uint32_t tag_of(uint32_t id, int32_t slot) {
  return static_cast<uint32_t>(slot + 1) << 10 | id;
}
/// The tags of the experts lane * kPerLane ...
template <uint32_t kPerLane>
__device__ __forceinline__ void load_tags(const StepArgs& p, uint32_t lane,
                                          uint32_t (&tag)[kPerLane]) {
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    const uint32_t id = lane * kPerLane + n;
    auto slot = static_cast<int32_t>(id);
    if (p.slot_of_expert != nullptr && id < p.n_experts) slot = __ldcg(p.slot_of_expert + id);
    tag[n] = tag_of(id, slot);
  }
}
/// The n_used largest, of equals the lower id first: the j-th in lane j.
template <uint32_t kPerLane, uint32_t kRows>
__device__ __forceinline__ Chosen choose_experts(const StepArgs& p, const View<kRows>& v,
                                                 const float (&logit)[kPerLane],
                                                 uint32_t (&tag)[kPerLane]) {
  uint32_t key[kPerLane];
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) {
    key[n] = v.lane * kPerLane + n < p.n_experts ? order_key(logit[n]) : 0u;
  }
  // Each lane's in order, equals as they are: neighbours change places.
#pragma unroll
  for (uint32_t round = 0; round < kPerLane; ++round) {
#pragma unroll
    for (uint32_t n = round % 2; n + 1 < kPerLane; n += 2) {
      const bool swap = key[n] < key[n + 1];
      const uint32_t k = key[n], t = tag[n];
      key[n] = swap ? key[n + 1] : k;
      tag[n] = swap ? tag[n + 1] : t;
      key[n + 1] = swap ? k : key[n + 1];
      tag[n + 1] = swap ? t : tag[n + 1];
    }
  }
  Chosen chosen = {0, -INFINITY};
#pragma unroll 1
  for (uint32_t j = 0; j < p.n_used; ++j) {
    const uint32_t best = __reduce_max_sync(~0u, key[0]);
    const uint32_t lanes = __ballot_sync(~0u, key[0] == best);
    const int from = __ffs(static_cast<int>(lanes)) - 1;
    const uint32_t its = __shfl_sync(~0u, tag[0], from);
    const bool mine = static_cast<int>(v.lane) == from;
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) {
      key[n] = !mine ? key[n] : n + 1 < kPerLane ? key[n + 1] : 0u;
      tag[n] = !mine || n + 1 == kPerLane ? tag[n] : tag[n + 1];
    }
    if (v.lane == j) {
      chosen = {its & 1023u, key_value(best)};
      if constexpr (kRows == 1) {
        v.misc->slot[j] = static_cast<int32_t>(its >> 10) - 1;
      } else {
        v.misc->tag[v.row() * p.n_used + j] = its;
      }
    }
  }
  if constexpr (kRows == 1) mbarrier_arrive(shared_address(&v.slots->chosen));
  return chosen;
}

/// The warps that choose meet.
template <uint32_t kRows>
__device__ __forceinline__ void routers_meet() {
  asm volatile("bar.sync 2, %0;" ::"n"(kRows * 32) : "memory");
}
/// One of these warps: numbers the experts that the rows chose, each once, by the first who did.
template <uint32_t kRows>
__device__ __forceinline__ void number_experts(const StepArgs& p, const View<kRows>& v) {
  const uint32_t n = p.n_rows * p.n_used, mine = v.lane;
  reinterpret_cast<uint32_t*>(v.misc->own_number)[mine] = kNobody * 0x01010101u;
  const uint32_t tag = mine < n ? v.misc->tag[mine] : ~0u;
  const uint32_t same = __match_any_sync(~0u, tag),
                 leader = static_cast<uint32_t>(__ffs(static_cast<int>(same))) - 1;
  const uint32_t leaders = __ballot_sync(~0u, mine < n && leader == mine);
  const auto expert = static_cast<uint32_t>(__popc(leaders & ((1u << leader) - 1)));
  __syncwarp();
  if (mine < n) {
    if (leader == mine) v.misc->slot[expert] = static_cast<int32_t>(tag >> 10) - 1;
    const uint32_t row = mine / p.n_used;
    v.misc->own_number[expert][row] = static_cast<uint8_t>(mine - row * p.n_used);
  }
  if (mine == 0) v.misc->n_experts = static_cast<uint32_t>(__popc(leaders));
  mbarrier_arrive(shared_address(&v.slots->chosen));
}

/// Softmax over all logits times the norm's factor: weights of the experts, and of the shared one.
template <uint32_t kPerLane, uint32_t kRows>
__device__ __forceinline__ void weigh_experts(const StepArgs& p, const View<kRows>& v,
                                              const float (&logit)[kPerLane], const Chosen& chosen,
                                              uint32_t number) {
  mbarrier_wait(shared_address(&v.slots->squared), 0);
  const float norm = norm_factor(p, v, p.norm_weight != nullptr, p.norm_eps);
  const float largest = __shfl_sync(~0u, chosen.logit, 0);
  const auto part = [&](float f) {
    const float e = __expf((f - largest) * norm);
    return e >= 0.0f ? e : 0.0f;  // NaN ends here
  };
  float sum = 0.0f;
#pragma unroll
  for (uint32_t n = 0; n < kPerLane; ++n) sum += part(logit[n]);
  sum = fmaxf(warp_sum(sum), 0x1p-126f);
  float weight = v.lane < p.n_used ? __fdividef(part(chosen.logit), sum) : 0.0f;
  if (p.renormalize) weight = __fdividef(weight, fmaxf(warp_sum(weight), 0x1p-14f));
  if (v.lane < p.n_used) {
    const uint32_t at = v.row() * p.n_used + v.lane;
    v.misc->weight[at] = weight;
    if (blockIdx.x == 0) {
      p.ids[at] = static_cast<int32_t>(chosen.id);
      p.weights[at] = weight;
    }
  }
  if (v.lane == 0) {
    float shared = 1.0f;
    if (p.shared_gate != nullptr) {
      uint64_t word;
      do {
        word = look_at(logit_of(p, v, p.n_experts, number));
      } while (!has_parts(word, p.n_parts));
      shared = 1.0f / (1.0f + __expf(-sum_of_parts(word) * norm));
    }
    v.misc->shared_weight[v.row()] = shared;
  }
  mbarrier_arrive(shared_address(&v.slots->weighed));
}

/// The warp that chooses for a row.
template <uint32_t kPerLane, uint32_t kRows>
__device__ __forceinline__ void route_own_row(const StepArgs& p, const View<kRows>& v) {
  const uint32_t number = __ldcg(of_row(p, v, p.sync) + blockIdx.x) + 1;
  // The next launch's sums begin at nothing.
  for (uint32_t o = blockIdx.x + v.lane * gridDim.x; o < kLogits; o += 32 * gridDim.x)
    store_word(logit_of(p, v, o, number + 1), 0);
  uint32_t tag[kPerLane];
  load_tags<kPerLane>(p, v.lane, tag);
  mbarrier_wait(shared_address(&v.slots->added), 0);
  float logit[kPerLane];
  await_logits<kPerLane>(p, v, number, logit);
  const Chosen chosen = choose_experts<kPerLane>(p, v, logit, tag);
  if constexpr (kRows != 1) {
    routers_meet<kRows>();
    if (v.row() == 0) number_experts(p, v);
  }
  weigh_experts<kPerLane>(p, v, logit, chosen, number);
}
/// The warps that choose.
template <uint32_t kPerLane, uint32_t kRows>
__device__ __forceinline__ void route(const StepArgs& p, const View<kRows>& v) {
  grid_dependency_wait();
  if (v.has_row(p)) {
    route_own_row<kPerLane>(p, v);
  } else {
    routers_meet<kRows>();
    mbarrier_arrive(shared_address(&v.slots->weighed));
  }
  grid_dependents_launch();  // all blocks have begun
}

}  // namespace sharpi::cuda::step
