// SPDX-License-Identifier: MIT
// One unit of weights (tiles.cuh) times the staged rows (stage.cuh), one warp: the inner loop of
// matvec.cu. Thread rule: device code.
#pragma once

#include "cuda/kernels/products/stage.cuh"
#include "cuda/kernels/products/tiles.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {

/// How many rows of x a kernel takes: as many eights as fill the columns of so many products of
/// tensor cores.
enum class RowCount : uint8_t { kEight = 1, kSixteen = 2 };
template <RowCount kRows>
constexpr int kEightsOf = kRows == RowCount::kSixteen ? 2 : 1;

/// One unit of the staged input as one lane reads it: row and column offsets included.
struct Inputs {
  const uint8_t *x, *sums;  // sums of 16 or of 32 columns, as the type needs
  const float* inverse;
  uint32_t x_step, sums_step;  // sixteen rows: to the lane's row of the second eight
};

/// The codes' sums, fixed for offsets and minima, to acc.
template <GgmlType kType, RowCount kRows>
__device__ __forceinline__ void add_fix(const uint8_t* unit, const typename Tile<kType>::Meta& meta,
                                        int n_blocks, const Inputs& in, int lane,
                                        const float (&sum)[kEightsOf<kRows>][4],
                                        float (&acc)[kEightsOf<kRows>][4]) {
  using T = Tile<kType>;
  constexpr int kEights = kEightsOf<kRows>;
  const float zero[4] = {};
  uint32_t f[4];
  T::fix_operand(unit, meta, n_blocks, lane, f);
#pragma unroll
  for (int j = 0; j < kEights; ++j) {
    const uint8_t* sums = in.sums + (j == 0 ? 0 : in.sums_step);
    float fix[4];
    if constexpr (T::kHalves) {
      const uint4 v = *reinterpret_cast<const uint4*>(sums);
      mma_f16(fix, f, v.x, v.y, zero);
      mma_f16(fix, f, v.z, v.w, fix);
    } else {
      const uint2 v = *reinterpret_cast<const uint2*>(sums);
      mma_f16(fix, f, v.x, v.y, zero);
    }
    const float2 inverse = *reinterpret_cast<const float2*>(in.inverse + 8 * j);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float factor = T::kFix * kSumUnit, product = sum[j][n];
      if constexpr (T::kSuper) {
        factor *= T::kMins ? meta.dmin[n / 2] : meta.d[n / 2];
        product *= meta.d[n / 2];
      }
      acc[j][n] =
          fmaf(fmaf(factor, fix[n], product), n % 2 == 0 ? inverse.x : inverse.y, acc[j][n]);
    }
  }
}

/// acc += (16 x 32 n_blocks piece of W) * inputs, for each eight of rows. acc[0], acc[1]: row g,
/// acc[2], acc[3]: row g + 8; columns (rows of x) 2 t and 2 t + 1.
template <GgmlType kType, RowCount kRows>
__device__ __forceinline__ void unit_product(const uint8_t* unit, int n_blocks, const Inputs& in,
                                             int lane, float (&acc)[kEightsOf<kRows>][4]) {
  using T = Tile<kType>;
  constexpr int kEights = kEightsOf<kRows>;
  const float zero[4] = {};
  const typename T::Meta meta = T::meta(unit, lane);
  float sum[kEights][4] = {};

  const auto block = [&](int b) {
    uint32_t a[8];
    T::codes(unit, b, lane, a);
    const Scales s = T::scales(unit, meta, b, lane);
    const uint32_t a0[4] = {a[0], a[4], a[1], a[5]}, a1[4] = {a[2], a[6], a[3], a[7]};
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
      uint4 x = *reinterpret_cast<const uint4*>(in.x + (j == 0 ? 0 : in.x_step) + b * 64);
      if constexpr (T::kOddShift == 0) {  // these codes are not shifted: undo the staged sixteenth
        const __half2 sixteen = __float2half2_rn(16.0f);
        reinterpret_cast<__half2&>(x.y) = __hmul2(reinterpret_cast<__half2&>(x.y), sixteen);
        reinterpret_cast<__half2&>(x.w) = __hmul2(reinterpret_cast<__half2&>(x.w), sixteen);
      }
      float d[4];
      mma_f16(d, a0, x.x, x.y, zero);
      if constexpr (T::kHalves) {  // a scale per 16 columns
#pragma unroll
        for (int n = 0; n < 4; ++n) sum[j][n] = fmaf(s.s[n / 2][0], d[n], sum[j][n]);
        mma_f16(d, a1, x.z, x.w, zero);
      } else {
        mma_f16(d, a1, x.z, x.w, d);
      }
#pragma unroll
      for (int n = 0; n < 4; ++n) sum[j][n] = fmaf(s.s[n / 2][1], d[n], sum[j][n]);
    }
  };
  if (T::kSuper || n_blocks == 8) {
#pragma unroll
    for (int b = 0; b < 8; ++b) block(b);
  } else {
#pragma unroll 1
    for (int b = 0; b < n_blocks; ++b) block(b);
  }

  if constexpr (T::kFix == 0.0f) {
    static_assert(kType == GgmlType::kMXFP4);
#pragma unroll
    for (int j = 0; j < kEights; ++j) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float inverse = in.inverse[8 * j + n % 2];
        acc[j][n] = fmaf(sum[j][n] * (kFp4Unit * 0x1p-24f), inverse, acc[j][n]);
      }
    }
  } else {
    add_fix<kType, kRows>(unit, meta, n_blocks, in, lane, sum, acc);
  }
}

}  // namespace sharpi::cuda
