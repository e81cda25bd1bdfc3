// SPDX-License-Identifier: MIT
// Teams of warps, which all kernels for attention of few rows have: a block's four warps form teams
// that take tiles of keys round-robin; a team is as many warps as a head has slices of 128 dims,
// each with its slice's queries and sums in registers. Independent of how keys and values reach the
// warp.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/attention/attention_queries.cuh"
#include "cuda/kernels/attention/attention_ring_plan.h"
#include "cuda/kernels/kv/kv_stream.cuh"

namespace sharpi::cuda::split {

template <int kSliceDims, int kTeam, bool kPairs>
struct Shape {
  static constexpr int kSlice = kSliceDims, kDim = kSlice * kTeam;
  static constexpr int kTeams = kWarps / kTeam;
  static constexpr int kVectors = kPairs ? 8 : 16;
  static constexpr int kQueries = (kSlice + 31) / 32 * 8, kValueChunks = (kSlice + 63) / 64;
  static constexpr int kScores = kPairs ? 4 : 8;  // of a thread and tile
};

template <class S>
using SumRegs = float[S::kValueChunks][8][4];

/// Adds up the partial scores of a team's slices; the same order in every warp.
template <class S, int kTeam>
__device__ __forceinline__ void share_scores(float (&s)[S::kScores], float* exchange,
                                             uint32_t round, uint32_t team, uint32_t member) {
  if constexpr (kTeam > 1) {
    float* mine = exchange + (team * 2 + round % 2) * kTeam * 32 * S::kScores;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::kScores; i += 4) {
      reinterpret_cast<float4*>(mine)[(member * (S::kScores / 4) + i / 4) * 32 + lane] = {
          s[i], s[i + 1], s[i + 2], s[i + 3]};
    }
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kTeam * 32) : "memory");
#pragma unroll
    for (int i = 0; i < S::kScores; i += 4) {
      float4 sum = {};
#pragma unroll
      for (uint32_t w = 0; w < kTeam; ++w) {
        const float4 x =
            reinterpret_cast<const float4*>(mine)[(w * (S::kScores / 4) + i / 4) * 32 + lane];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      s[i] = sum.x, s[i + 1] = sum.y, s[i + 2] = sum.z, s[i + 3] = sum.w;
    }
  }
}

/// Running softmax of one or two vectors of a thread.
template <class S, bool kPairs>
struct RunningSoftmax {
  static constexpr int kHalves = kPairs ? 1 : 2;
  float m[kHalves], l[kHalves];
  int64_t low[kHalves], high[kHalves];  // keys that the vector sees: [low, high]

  __device__ __forceinline__ void start(const AttentionArgs& a, const RowBlock& b) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const uint32_t v = threadIdx.x % 32 / 4 + 8u * static_cast<uint32_t>(h);
      const uint32_t row = v / a.group;
      m[h] = -INFINITY;
      l[h] = 0.0f;
      high[h] = row < b.n ? static_cast<int64_t>(b.first_key + row) : -1;
      low[h] = static_cast<int64_t>(b.low);
      if (a.p.kv.window != 0) low[h] = max(low[h], high[h] + 1 - int64_t{a.p.kv.window});
    }
  }
  /// What was summed up to the last maxima, in terms of the new ones.
  __device__ __forceinline__ void rescale(bool grew, const float (&factor)[kHalves],
                                          SumRegs<S>& o) {
    if (!__any_sync(0xFFFFFFFFu, grew)) return;
#pragma unroll
    for (int c = 0; c < S::kValueChunks; ++c) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[c][j][i] *= factor[i / 2 % kHalves];
      }
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) l[h] *= factor[h];
  }
};

/// The running softmax with weights in place of scores.
template <class S, bool kPairs>
struct Running : RunningSoftmax<S, kPairs> {
  using Base = RunningSoftmax<S, kPairs>;
  using Base::high, Base::kHalves, Base::l, Base::low, Base::m;

  __device__ __forceinline__ void mask(float* s, uint64_t first, int h) const {
    const auto t0 = static_cast<int64_t>(first + threadIdx.x % 4 * 2);
    const auto from = static_cast<int32_t>(max(low[h] - t0, int64_t{-1}));
    const auto to = static_cast<int32_t>(max(min(high[h] - t0, int64_t{16}), int64_t{-1}));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = i % 2 + i / 2 * 8;
      if (key < from || key > to) s[i] = -INFINITY;
    }
  }
  /// Masks the scores, turns them into weights, rescales o when a maximum grew.
  /// seen: every vector of the block sees every key of the tile.
  __device__ __forceinline__ void fold(float (&s)[S::kScores], uint64_t first, bool seen,
                                       SumRegs<S>& o) {
    float factor[kHalves];
    bool grew = false;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      if (!seen) mask(&s[4 * h], first, h);
      float top = m[h];
#pragma unroll
      for (int i = 0; i < 4; ++i) top = fmaxf(top, s[4 * h + i]);
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
      grew = grew || top > m[h];
      factor[h] = m[h] == -INFINITY ? 0.0f : exp2_approx(m[h] - top);
      m[h] = top;
    }
    Base::rescale(grew, factor, o);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const float base = m[h] == -INFINITY ? 0.0f : m[h];  // nothing seen yet: exp2(-inf) = 0
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& x = s[4 * h + i];
        x = exp2_approx(x - base);
        l[h] += x;
      }
    }
  }
};

/// f(codec) for the codec that kernels are made for, or for that of run time where they are made
/// for any (KvDtype::kAuto).
template <KvDtype kKnown, class F>
__device__ __forceinline__ void with_codec(KvDtype type, const F& f) {
  if constexpr (kKnown != KvDtype::kAuto) {
    f.template operator()<kKnown>();
  } else {
    with_kv_codec<KvDtype::kF32>(type, f);
  }
}

/// Host: f(codec of the kernel): one for each codec, and one for keys and values in different ones.
template <class F>
Status with_known(const KvLayer& l, const F& f) {
  const auto any = [&] { return f.template operator()<KvDtype::kAuto>(); };
  return l.k_dtype == l.v_dtype ? visit_kv_codec(l.k_dtype, f, any) : any();
}

/// Weights as an A operand.
template <KvDtype kType, int kSlice, bool kPairs>
__device__ __forceinline__ void pack_weights(const float* w, uint32_t (&p)[4]) {
  constexpr bool bf16 = KvCodecTraits<kType>::kProduct == KvProduct::kBf16;
  if constexpr (kPairs && ValueCodec<kType, kSlice>::kCodes) {
    p[0] = pack_f16(w[0] * kCodeWeight, w[1] * kCodeWeight);
    p[2] = pack_f16(w[2] * kCodeWeight, w[3] * kCodeWeight);
  } else {
#pragma unroll
    for (int h = 0; h < (kPairs ? 1 : 2); ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float lo = w[4 * h + 2 * i], hi = w[4 * h + 2 * i + 1];
        const uint32_t packed = bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
        p[2 * i + h] = packed;
        if (kPairs) {
          const float2 v = unpack_16(bf16, packed);
          p[2 * i + 1] = bf16 ? pack_bf16(lo - v.x, hi - v.y) : pack_f16(lo - v.x, hi - v.y);
        }
      }
    }
  }
}

/// The four elements from 16 t + 4 i of chunk c of a thread's vector g + 8 h.
template <class S, bool kPairs>
__device__ __forceinline__ float4 sum_of(const SumRegs<S>& o, bool codes, int c, int h, int i) {
  const uint32_t t = threadIdx.x % 4;
  float x[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const float* from = o[c][i % 2 * 4 + j];
    const float lo = from[(kPairs ? 0 : 2 * h) + i / 2], hi = from[2 + i / 2];
    x[j] = !kPairs ? lo : codes ? kCodeUnit * (t < 2 ? lo : hi) : lo + hi;
  }
  return {x[0], x[1], x[2], x[3]};
}

/// f(vector, element of the head, four sums, maximum, sum of weights) for what a thread has.
template <class S, bool kPairs, class F>
__device__ __forceinline__ void for_sums(const RunningSoftmax<S, kPairs>& run, const SumRegs<S>& o,
                                         KvDtype values, uint32_t member, const F& f) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const bool codes = kPairs && S::kSlice % 32 == 0 && uses_codes(values);
#pragma unroll
  for (int h = 0; h < RunningSoftmax<S, kPairs>::kHalves; ++h) {
    float sum = run.l[h];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
#pragma unroll
    for (int c = 0; c < S::kValueChunks; ++c) {
      const uint32_t d = static_cast<uint32_t>(c) * 64 + 16 * t;
      if (S::kSlice % 64 != 0 && d >= S::kSlice) continue;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        f(g + 8u * static_cast<uint32_t>(h), member * S::kSlice + d + 4 * i,
          sum_of<S, kPairs>(o, codes, c, h, i), run.m[h], sum);
      }
    }
  }
}

/// The teams' sums to shared memory: m, l [teams][16], o [teams][kVectors][parked_pitch].
template <class S, bool kPairs>
__device__ __forceinline__ void park(const RunningSoftmax<S, kPairs>& run, const SumRegs<S>& o,
                                     KvDtype values, uint32_t team, uint32_t member,
                                     float* shared) {
  float *m = shared + team * 16, *l = shared + S::kTeams * 16 + team * 16;
  float* sums = shared + 2 * S::kTeams * 16 + team * S::kVectors * parked_pitch(S::kDim);
  for_sums<S, kPairs>(
      run, o, values, member, [&](uint32_t v, uint32_t d, float4 x, float top, float all) {
        if (d == 0) m[v] = top, l[v] = all;
        *reinterpret_cast<float4*>(sums + v * parked_pitch(S::kDim) + parked_at(d)) = x;
      });
}

/// Vector v's elements d to d + 3 to the output, or to `part` as a partial result of n vectors.
template <class S>
__device__ __forceinline__ void store_sums(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                           uint32_t first_row, uint32_t v, uint32_t d, float4 x,
                                           float top, float all, float* part) {
  if (part == nullptr) {
    const uint32_t head = kv * a.group + v % a.group;
    store_result(a.p, first_row + v / a.group, head, d,
                 fma4(inverse_sum(a.p, head, top, all), x, {}));
    return;
  }
  const uint32_t n = b.n * a.group;
  *reinterpret_cast<float4*>(part + v * S::kDim + d) = x;
  if (d == 0) {
    part[n * S::kDim + v] = top;
    part[n * S::kDim + n + v] = all;
  }
}

/// Merges the teams' parked sums; the result goes to `o`, or to `part` as a partial one.
template <class S>
__device__ __forceinline__ void merge_teams(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                            const float* shared, float* part) {
  const float *m = shared, *l = shared + S::kTeams * 16, *sums = shared + 2 * S::kTeams * 16;
  const uint32_t first_row = a.p.batch.table.sequences[b.sequence].first_row + b.row0;
  for (uint32_t i = threadIdx.x * 4; i < b.n * a.group * S::kDim; i += kThreads * 4) {
    const uint32_t v = i / S::kDim, d = i % S::kDim;
    float top = -INFINITY, all = 0.0f;
    float4 sum = {};
#pragma unroll
    for (uint32_t w = 0; w < S::kTeams; ++w) top = fmaxf(top, m[w * 16 + v]);
#pragma unroll
    for (uint32_t w = 0; w < S::kTeams; ++w) {
      const float f = m[w * 16 + v] == -INFINITY ? 0.0f : exp2_approx(m[w * 16 + v] - top);
      all = fmaf(f, l[w * 16 + v], all);
      const float* from = sums + (w * S::kVectors + v) * parked_pitch(S::kDim) + parked_at(d);
      sum = fma4(f, *reinterpret_cast<const float4*>(from), sum);
    }
    store_sums<S>(a, b, kv, first_row, v, d, sum, top, all, part);
  }
}

/// A block's result from its teams' sums to the output or to `part`; with one team straight from
/// registers. `shared`: parked_floats(), free.
template <class S, bool kPairs>
__device__ __forceinline__ void finish(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                       const RunningSoftmax<S, kPairs>& run, const SumRegs<S>& o,
                                       uint32_t team, uint32_t member, float* shared, float* part) {
  if constexpr (S::kTeams == 1) {
    const uint32_t first_row = a.p.batch.table.sequences[b.sequence].first_row + b.row0;
    for_sums<S, kPairs>(run, o, a.p.kv.v_dtype, member,
                        [&](uint32_t v, uint32_t d, float4 x, float top, float all) {
                          if (v >= b.n * a.group) return;
                          store_sums<S>(a, b, kv, first_row, v, d, x, top, all, part);
                        });
  } else {
    park<S, kPairs>(run, o, a.p.kv.v_dtype, team, member, shared);
    __syncthreads();
    merge_teams<S>(a, b, kv, shared, part);
  }
}

}  // namespace sharpi::cuda::split
