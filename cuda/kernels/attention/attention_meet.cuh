// SPDX-License-Identifier: MIT
// Split-KV attention in one launch: the partial results of the blocks that share query vectors are
// merged by the last block to arrive. Where that would take one block too long, the last few blocks
// wait until all have arrived, and each merges some of the columns. Waiting blocks occupy
// multiprocessors, so there must be fewer of them than multiprocessors.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/kv/kv_fragments.cuh"

namespace sharpi::cuda {

constexpr uint32_t kMeetAhead = 9;      // splits that a thread loads at a time
constexpr uint32_t kMostMeetShift = 3;  // up to 8 groups of threads, which take splits round-robin

/// The most blocks of a unit that merge; blocks have 128 threads or more. The blocks that wait, of
/// all units together, have to be fewer than the multiprocessors, so that the other blocks find
/// room.
constexpr uint64_t most_mergers(uint64_t vectors, uint64_t dim) {
  return ((vectors * dim / 4 << kMostMeetShift) + 127) / 128;
}

/// Partial sums of a thread's columns, scaled to the largest maximum of its splits.
template <uint32_t kThreads>
struct MeetShare {
  float4 sum[kThreads];
  float top[kThreads], all[kThreads];
};

__device__ __forceinline__ uint32_t arrived(const uint32_t* counter) {
  uint32_t n;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(counter) : "memory");
  return n;
}

/// Counts this block's arrival. The last `mergers` of n blocks wait until all have arrived: which
/// of them this is, or `mergers`. What blocks wrote before they arrived can be read then.
__device__ __forceinline__ uint32_t join_meeting(uint32_t* counter, uint32_t n, uint32_t mergers,
                                                 uint32_t* shared) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();  // for all that this block's threads wrote before the barrier
    const uint32_t at = atomicAdd(counter, 1u) + mergers;
    if (at >= n) {
      while (arrived(counter) < n) {
      }
    }
    *shared = at < n ? mergers : at - n;
    __threadfence();
  }
  __syncthreads();
  return *shared;
}
/// Called by a block that merged and will not look at the counter again; the last one clears it.
__device__ __forceinline__ void leave_meeting(uint32_t* counter, uint32_t n, uint32_t mergers) {
  if (threadIdx.x == 0 && atomicAdd(counter, 1u) + 1 == n + mergers) *counter = 0;
}

/// A unit's split launch: `vectors` query vectors from row `first_row` on, of one KV head.
struct MeetParts {
  uint64_t first_row;
  uint32_t kv, vectors, n_splits;
  const float* parts;  // split s at s * stride
  uint64_t stride;
};

/// How the columns are divided among the merging blocks. A block's threads form 1 << shift groups,
/// which take splits round-robin; there are as many groups as leave work to all threads of the
/// blocks that may merge.
template <uint32_t kThreads>
struct MeetPlan {
  uint32_t all, shift, mergers;  // columns, four floats each

  __device__ __forceinline__ MeetPlan(const AttentionArgs& a, const MeetParts& p) {
    const uint32_t most = a.meets ? p.n_splits : 1;
    all = p.vectors * a.p.kv.head_dim / 4;
    shift = 0;
    while (shift < kMostMeetShift && all << (shift + 1) <= kThreads * most) ++shift;
    mergers = min(((all << shift) + kThreads - 1) / kThreads, most);
  }
  __device__ __forceinline__ uint32_t fours() const { return kThreads >> shift; }  // a block's
};

/// Four columns of the splits of a thread's group.
struct MeetSum {
  float4 sum = {};
  float top = -INFINITY, all = 0.0f;

  __device__ __forceinline__ void take(const float* column, const float* tops, const MeetParts& p,
                                       uint32_t group, uint32_t n_groups) {
#pragma unroll 1
    for (uint32_t s0 = group; s0 < p.n_splits; s0 += n_groups * kMeetAhead) {
      float4 x[kMeetAhead];
      float m[kMeetAhead], l[kMeetAhead];
      load_splits(column, tops, p.vectors, p.stride, s0, n_groups, p.n_splits, x, m, l);
      const float before = top;
#pragma unroll
      for (uint32_t j = 0; j < kMeetAhead; ++j) top = fmaxf(top, m[j]);
      const float base = top == -INFINITY ? 0.0f : top, f = exp2_approx(before - base);
      sum = fma4(f, sum, {});
      all *= f;
#pragma unroll
      for (uint32_t j = 0; j < kMeetAhead; ++j) {
        const float w = exp2_approx(m[j] - base);
        sum = fma4(w, x[j], sum);
        all = fmaf(w, l[j], all);
      }
    }
  }
};

/// The columns of block `share`. Splits are added up in one order always.
template <uint32_t kThreads>
__device__ __forceinline__ void merge_share(const AttentionArgs& a, const MeetParts& p,
                                            const MeetPlan<kThreads>& plan, uint32_t share,
                                            MeetShare<kThreads>* shared) {
  constexpr uint32_t kMost = 1u << kMostMeetShift;
  const uint32_t dim = a.p.kv.head_dim, fours = plan.fours(), n_groups = 1u << plan.shift;
  const uint32_t column = threadIdx.x & (fours - 1), group = threadIdx.x * n_groups / kThreads;
#pragma unroll 1
  for (uint32_t first = share * fours; first < plan.all; first += plan.mergers * fours) {
    const uint32_t d = min(first + column, plan.all - 1) * 4, v = d / dim;
    MeetSum mine;
    mine.take(p.parts + d, p.parts + p.vectors * dim + v, p, group, n_groups);
    shared->sum[threadIdx.x] = mine.sum;
    shared->top[threadIdx.x] = mine.top;
    shared->all[threadIdx.x] = mine.all;
    __syncthreads();
    if (group == 0 && first + column < plan.all) {
      float tops[kMost], top = -INFINITY, weight = 0.0f;
      float4 sum = {};
#pragma unroll
      for (uint32_t i = 0; i < kMost; ++i) {
        tops[i] = i < n_groups ? shared->top[column + i * fours] : -INFINITY;
        top = fmaxf(top, tops[i]);
      }
      const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
      for (uint32_t i = 0; i < kMost; ++i) {
        if (i >= n_groups) continue;
        const float w = exp2_approx(tops[i] - base);
        sum = fma4(w, shared->sum[column + i * fours], sum);
        weight = fmaf(w, shared->all[column + i * fours], weight);
      }
      const uint32_t head = p.kv * a.group + v % a.group;
      store_result(a.p, p.first_row + v / a.group, head, d - v * dim,
                   fma4(inverse_sum(a.p, head, top, weight), sum, {}));
    }
    __syncthreads();
  }
}

/// The merge of a unit's partial results. Every thread of every block.
template <uint32_t kThreads>
__device__ __forceinline__ void meet(const AttentionArgs& a, const MeetParts& p, uint32_t* counter,
                                     uint32_t* flag, uint8_t* shared) {
  const MeetPlan<kThreads> plan(a, p);
  const uint32_t share = join_meeting(counter, p.n_splits, plan.mergers, flag);
  if (share == plan.mergers) return;
  merge_share<kThreads>(a, p, plan, share, reinterpret_cast<MeetShare<kThreads>*>(shared));
  leave_meeting(counter, p.n_splits, plan.mergers);
}

}  // namespace sharpi::cuda
