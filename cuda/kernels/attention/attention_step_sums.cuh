// SPDX-License-Identifier: MIT
// A step's attention: products of a tile with queries and weights, and what a warp sums up.
// Thread rule: device code.
#pragma once

#include <algorithm>

#include "cuda/kernels/attention/attention_step.cuh"

namespace sharpi::cuda::step {

template <KvDtype kKey, KvDtype kValue, int kTeam, bool kPairs, uint32_t kSpace, bool kMany>
struct Form {
  static constexpr bool kSeveral = kMany;
  static constexpr uint32_t kTeams = kWarps / kTeam, kDim = kTeam * kSlice;
  static constexpr int kHalves = kPairs ? 1 : 2;
  using T = Stage<kKey, kValue>;
  static constexpr bool kCodes = T::kCodes;
  static constexpr int kEach = T::kKeys / 4, kScores = kEach * kHalves;  // of a thread
  static constexpr StepForm kForm = step_form(kKey, kValue, kDim, kPairs, kSpace);
  static constexpr uint32_t kCount = kForm.count;
  static constexpr uint32_t kMost = kPairs ? kStepPairs : kSplitVectors;  // vectors
  static constexpr uint32_t kRing = kForm.ring_bytes, kStages = kForm.stages;
  static constexpr uint32_t kParkedPitch = kForm.parked_pitch;
  static_assert(kCount == kProducts<kKey, kPairs> && kRing == kWarps * T::kBytesOf);
  static_assert(kStages >= 1 && kForm.shared_bytes + kForm.static_bytes <= kSpace);
};

/// What a warp has summed up: running maxima and sums of weights, values of its slice.
template <class F>
struct Sums {
  static constexpr int kBias = !F::kCodes ? 1 : F::kHalves == 1 ? 2 : 4;
  float m[F::kHalves], l[F::kHalves], o[2][8][4], bias[kBias][4];

  __device__ __forceinline__ void start() {
#pragma unroll
    for (int h = 0; h < F::kHalves; ++h) m[h] = -INFINITY, l[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i / 32][i / 4 % 8][i % 4] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * kBias; ++i) bias[i / 4][i % 4] = 0.0f;
  }
  /// What a vector's row does not see, of a tile that not all rows see all of.
  __device__ __forceinline__ void hide(const Tiles& tiles, uint32_t key, float (&s)[F::kScores]) {
    const uint32_t last = tiles.newest - tiles.first_newest;
    if (key >= tiles.begin_of(last) && key + 4 * F::kEach <= tiles.first_newest + 1) return;
#pragma unroll
    for (int h = 0; h < F::kHalves; ++h) {
      const uint32_t vector = threadIdx.x % 32 / 4 + 8u * static_cast<uint32_t>(h);
      const uint32_t row = min(vector / tiles.group, last), begin = tiles.begin_of(row);
#pragma unroll
      for (int i = 0; i < F::kEach; ++i) {
        const uint32_t at = key + threadIdx.x % 4 * 2 + i % 2 + i / 2 * 8;
        if (at < begin || at > tiles.first_newest + row) s[F::kEach * h + i] = -INFINITY;
      }
    }
  }
  /// Scores of keys key + 2t + i % 2 + i / 2 * 8 become weights.
  __device__ __forceinline__ void fold(const Tiles& tiles, uint32_t key, float (&s)[F::kScores]) {
    if constexpr (F::kSeveral) {
      hide(tiles, key, s);
    } else if (key < tiles.begin || key + 4 * F::kEach > tiles.newest + 1) {
#pragma unroll
      for (int i = 0; i < F::kScores; ++i) {
        const uint32_t at = key + threadIdx.x % 4 * 2 + i % 2 + i % F::kEach / 2 * 8;
        if (at < tiles.begin || at > tiles.newest) s[i] = -INFINITY;
      }
    }
    float factor[F::kHalves];
    bool grew = false;
#pragma unroll
    for (int h = 0; h < F::kHalves; ++h) {
      float* x = s + F::kEach * h;
      float tops[2] = {m[h], x[0]};
#pragma unroll
      for (int i = 1; i < F::kEach; ++i) tops[i % 2] = fmaxf(tops[i % 2], x[i]);
      float top = fmaxf(tops[0], tops[1]);
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
      grew = grew || top > m[h];
      const float base = top == -INFINITY ? 0.0f : top;  // nothing seen yet: exp2(-inf) = 0
      factor[h] = exp2_approx(m[h] - base);
      m[h] = top;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < F::kEach; i += 2) {
        x[i] = exp2_approx(x[i] - base);
        x[i + 1] = exp2_approx(x[i + 1] - base);
        sum += x[i] + x[i + 1];
      }
      l[h] = fmaf(l[h], factor[h], sum);
    }
    if (!__any_sync(0xFFFFFFFFu, grew)) return;
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i / 32][i / 4 % 8][i % 4] *= factor[i % 4 / 2 % F::kHalves];
#pragma unroll
    for (int i = 0; i < (F::kCodes ? 4 * kBias : 0); ++i) {
      bias[i / 4][i % 4] *= factor[i % 4 / 2 % F::kHalves];
    }
  }
};

/// The partial scores of a team's slices, added up; the same order in every warp.
template <class F, int kTeam>
__device__ __forceinline__ void share_scores(float (&s)[F::kScores], float* exchange,
                                             uint32_t round, uint32_t team, uint32_t member) {
  if constexpr (kTeam > 1) {
    constexpr uint32_t kFours = F::kScores / 4;
    auto* mine = reinterpret_cast<float4*>(exchange) +
                 (team * 2 + round % 2) * kTeam * 32 * kFours + threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < kFours; ++i) {
      mine[(member * kFours + i) * 32] = {s[4 * i], s[4 * i + 1], s[4 * i + 2], s[4 * i + 3]};
    }
    asm volatile("bar.sync %0, %1;" ::"r"(team + 1), "n"(kTeam * 32) : "memory");
#pragma unroll
    for (uint32_t i = 0; i < kFours; ++i) {
      float4 sum = mine[i * 32];
#pragma unroll
      for (uint32_t w = 1; w < kTeam; ++w) {
        const float4 x = mine[(w * kFours + i) * 32];
        sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
      }
      s[4 * i] = sum.x, s[4 * i + 1] = sum.y, s[4 * i + 2] = sum.z, s[4 * i + 3] = sum.w;
    }
  }
}

/// f(vector, element of the slice, four sums) for what a thread has.
template <class F, bool kPairs, class Fn>
__device__ __forceinline__ void for_sums(const Sums<F>& s, const Fn& f) {
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int h = 0; h < F::kHalves; ++h) {
#pragma unroll
    for (int part = 0; part < 8; ++part) {
      float x[4];
      uint32_t d = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if constexpr (F::kCodes && !kPairs) {  // four elements of half a block
          const int k = part / 2, i = part % 2;
          d = static_cast<uint32_t>(32 * k + 4 * i) + 8 * t;
          x[j] = kCodeUnit * (s.o[k / 2][k % 2 * 4 + j][2 * h + i] + s.bias[k][2 * h]);
          continue;
        }
        const int c = part / 4, i = part % 4;
        d = static_cast<uint32_t>(64 * c + 4 * i) + 16 * t;
        const float* from = s.o[c][i % 2 * 4 + j];
        const float lo = from[2 * h + i / 2], hi = from[2 + i / 2];
        if constexpr (F::kCodes) {
          x[j] = kCodeUnit * (t < 2 ? lo + s.bias[c][0] : hi + s.bias[c][2]);
        } else {
          x[j] = kPairs ? lo + hi : lo;
        }
      }
      f(g + 8u * static_cast<uint32_t>(h), d, h, float4{x[0], x[1], x[2], x[3]});
    }
  }
}

}  // namespace sharpi::cuda::step
