// SPDX-License-Identifier: MIT
// What the recurrence of many rows (delta_net.cu) and of rows that are applied later
// (delta_replay.cuh) have in common: a head's convolution in a warp, a tile of the state in
// registers and how a row changes it. Thread rule: device code.
#pragma once

#include "cuda/kernels/delta/delta_common.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kScanThreads = 64;
constexpr int kStateRows = 32;  // value channels of a block: eight lanes hold four each

/// One warp's channels c0 + lane + 32 i: taps and the raw rows before the current one.
template <int kDim>
struct ConvHead {
  static constexpr int kPer = kDim / 32;
  float taps[kPer][4], older[kPer][3];  // the last taps and rows: fewer than four leave zeros
  uint32_t c0;

  __device__ __forceinline__ void start(const DeltaNetParams& p, uint32_t first) {
    c0 = first;
    const uint32_t kernel = p.shape.conv_kernel;
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (uint32_t t = 0; t < 4; ++t) {
        taps[i][t] = t + kernel >= 4 ? p.conv1d[channel(i) * kernel + t + kernel - 4] : 0.0f;
      }
    }
  }
  __device__ __forceinline__ uint32_t channel(int i) const {
    return c0 + threadIdx.x % 32 + 32u * static_cast<uint32_t>(i);
  }
  __device__ __forceinline__ void seek(const ConvSource& s, int32_t index) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int t = 0; t < 3; ++t) {
        const bool used = t + static_cast<int>(s.kernel) >= 4;
        older[i][t] = used ? raw_value(s, index + t - 3, channel(i)) : 0.0f;
      }
    }
  }
  /// Row `row` of the call; its predecessor was the last one, or seek() was called.
  __device__ __forceinline__ void next(const ConvSource& s, uint64_t row, float (&y)[kPer]) {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      const float x = s.all[row * s.dim + channel(i)];
      const float sum = fmaf(
          taps[i][3], x,
          fmaf(taps[i][2], older[i][2], fmaf(taps[i][1], older[i][1], taps[i][0] * older[i][0])));
      older[i][0] = older[i][1];
      older[i][1] = older[i][2];
      older[i][2] = x;
      y[i] = silu(sum);
    }
  }
  /// The last row of next(), as it came.
  __device__ __forceinline__ void keep(float* row) const {
#pragma unroll
    for (int i = 0; i < kPer; ++i) row[channel(i)] = older[i][2];
  }
  /// The rows before the next one.
  __device__ __forceinline__ void store_tail(const ConvSource& s, float* tail) const {
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (uint32_t t = 0; t < 3; ++t) {
        if (t + s.kernel >= 4) tail[(t + s.kernel - 4) * s.dim + channel(i)] = older[i][t];
      }
    }
  }
};
template <int kDim>
__device__ __forceinline__ float dot_head(const float (&a)[kDim / 32],
                                          const float (&b)[kDim / 32]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kDim / 32; ++i) sum = fmaf(a[i], b[i], sum);
  return delta_warp_sum(sum);
}

/// Sums of x[i] over the eight lanes of a group: lane l gets that of x[l].
__device__ __forceinline__ float sum_each(float (&x)[8]) {
  const uint32_t lane = threadIdx.x;
#pragma unroll
  for (int n = 4; n > 0; n /= 2) {
    const bool upper = (lane & static_cast<uint32_t>(n)) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float give = upper ? x[i] : x[i + n], keep = upper ? x[i + n] : x[i];
      x[i] = keep + __shfl_xor_sync(0xFFFFFFFFu, give, n);
    }
  }
  return x[0];
}

/// Four rows of the state per thread, kDim / 8 keys of each.
template <int kDim>
struct StateTile {
  static constexpr int kPer = kDim / 32;  // groups of four keys
  float4 s[4][kPer];

  /// `from`, `to`: the first of the four rows.
  __device__ __forceinline__ void load(const float* from) {
    const uint32_t lane = threadIdx.x % 8;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        s[r][i] =
            reinterpret_cast<const float4*>(from + r * kDim)[lane + 8u * static_cast<uint32_t>(i)];
      }
    }
  }
  __device__ __forceinline__ void store(float* to) const {
    const uint32_t lane = threadIdx.x % 8;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
#pragma unroll
      for (int i = 0; i < kPer; ++i) {
        reinterpret_cast<float4*>(to + r * kDim)[lane + 8u * static_cast<uint32_t>(i)] = s[r][i];
      }
    }
  }

  /// One token: returns d in lanes 0-3 of each group, o in lanes 4-7, of rows lane % 4.
  __device__ __forceinline__ float advance(const float* k, const float* q, float v, float decay,
                                           float beta, float kq) {
    const uint32_t lane = threadIdx.x % 8;
    float4 kv[kPer];
    float sums[8] = {};
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
      kv[i] = reinterpret_cast<const float4*>(k)[lane + 8u * static_cast<uint32_t>(i)];
      const float4 qv = reinterpret_cast<const float4*>(q)[lane + 8u * static_cast<uint32_t>(i)];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 x = s[r][i];
        sums[r] =
            fmaf(x.w, kv[i].w, fmaf(x.z, kv[i].z, fmaf(x.y, kv[i].y, fmaf(x.x, kv[i].x, sums[r]))));
        sums[4 + r] =
            fmaf(x.w, qv.w, fmaf(x.z, qv.z, fmaf(x.y, qv.y, fmaf(x.x, qv.x, sums[4 + r]))));
      }
    }
    // Rounded here: where nobody asks for the output, the product would melt into the difference,
    // and rows that are applied later would leave other bits than rows that were computed.
    const float decayed = __fmul_rn(decay, sum_each(sums));
    const float mine = beta * __fsub_rn(v, decayed);  // lanes 0-3
    float d[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) d[r] = __shfl_sync(0xFFFFFFFFu, mine, r, 8);
#pragma unroll
    for (int i = 0; i < kPer; ++i) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float4& x = s[r][i];
        x.x = fmaf(d[r], kv[i].x, decay * x.x);
        x.y = fmaf(d[r], kv[i].y, decay * x.y);
        x.z = fmaf(d[r], kv[i].z, decay * x.z);
        x.w = fmaf(d[r], kv[i].w, decay * x.w);
      }
    }
    const uint32_t row = lane % 4;
    const float of = row == 0 ? d[0] : row == 1 ? d[1] : row == 2 ? d[2] : d[3];
    return fmaf(of, kq, decayed);
  }
};

}  // namespace
}  // namespace sharpi::cuda
