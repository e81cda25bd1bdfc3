// SPDX-License-Identifier: MIT
// One unit of weights (tiles.cuh) times two or four rows in fixed point, one warp: what
// fixed_product.cuh does with one row. High and low bytes of the rows are the eight columns of the
// second operand, so four rows take the products of tensor cores that one takes; what a lane adds
// up with one row for one of four groups of blocks, it adds up here for several of them, apart and
// in the same order, so every row has the bits that it has alone.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/fixed_product.cuh"

namespace sharpi::cuda {

/// Columns of the second operand: pair n (high and low bytes) is row n % kRows, of the n / kRows-th
/// of the blocks that one product takes (kApart).
template <uint32_t kRows>
struct RowColumns {
  static_assert(kRows == 2 || kRows == 4);
  static constexpr int kCount = static_cast<int>(kRows);  // rows; sums that a lane has apart of one
  static constexpr int kApart = 4 / kCount;
};

/// What a lane sums over a panel's units, for rows g and g + 8 of the panel and row
/// lane % 4 % kRows; the groups of blocks that fixed_product.cuh gives to lanes 0 to 3 are
/// [i] of lane / kRows's parity i * kApart + lane % 4 / kRows.
template <uint32_t kRows>
struct RowSums {
  float part[2][kRows] = {};
};

/// Leaves sums of a panel at to[row][row of the panel], in the order in which one row's lanes are
/// added up (unit_shares.cuh). All lanes.
template <uint32_t kRows>
__device__ __forceinline__ void leave_row_sums(float* to, int lane, const RowSums<kRows>& acc) {
  float sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if constexpr (kRows == 4) {
      sum[h] = (acc.part[h][0] + acc.part[h][1]) + (acc.part[h][2] + acc.part[h][3]);
    } else {
      const float a = acc.part[h][0] + __shfl_xor_sync(~0u, acc.part[h][0], 2),
                  b = acc.part[h][1] + __shfl_xor_sync(~0u, acc.part[h][1], 2);
      sum[h] = a + b;
    }
  }
  const int row = lane % 4;
  if (row >= static_cast<int>(kRows)) return;
  to[row * static_cast<int>(kPanelRows) + lane / 4] = sum[0];
  to[row * static_cast<int>(kPanelRows) + lane / 4 + 8] = sum[1];
}

/// One unit of rows that are staged beside each other.
template <uint32_t kRows>
struct RowInputs {
  const uint8_t* x;       // [block of 32 columns][row][high, low]
  const float* sums;      // [row][block]
  const float* inverses;  // [row]

  using C = RowColumns<kRows>;

  /// The lane's columns of kApart blocks, and of one block.
  __device__ __forceinline__ uint2 columns_of_apart(int first, int lane) const {
    return load_as<uint2>(x + first * (64 * C::kCount) + lane * 8);
  }
  __device__ __forceinline__ uint2 columns(int block, int lane) const {
    return load_as<uint2>(x + lane % (8 * C::kCount) * 8 + block * (64 * C::kCount));
  }
  /// Of the row whose sums the lane has.
  __device__ __forceinline__ const float* sums_of(int row) const { return sums + row * 8; }
  __device__ __forceinline__ float inverse(int row) const { return inverses[row]; }
};

/// One unit of rows that are staged apart: the lane's own places. Rows that a matrix is not for
/// have zeros there.
template <uint32_t kRows>
struct ApartInputs {
  const uint8_t* x;   // of row lane / 8 % kRows: [block][high, low], from the lane's bytes on
  const float* sums;  // of row lane % 4 % kRows: [block]
  const float* of_unit;

  __device__ __forceinline__ uint2 columns_of_apart(int first, int lane) const {
    return load_as<uint2>(x + (first + lane / (8 * RowColumns<kRows>::kCount)) * 64);
  }
  __device__ __forceinline__ uint2 columns(int block, int) const {
    return load_as<uint2>(x + block * 64);
  }
  __device__ __forceinline__ const float* sums_of(int) const { return sums; }
  __device__ __forceinline__ float inverse(int) const { return *of_unit; }
};

/// acc += unit * in.
template <GgmlType kType, uint32_t kRows>
struct FixedRows;

/// d[half] += blocks 4 half + kApart i and on, each times its columns.
template <GgmlType kType, uint32_t kRows, class Unit, class Inputs>
__device__ __forceinline__ void apart_blocks(const Unit& unit, const Inputs& in, int half, int i,
                                             int lane, int (&d)[4]) {
  using C = RowColumns<kRows>;
  const int first = 4 * half + C::kApart * i;
  const uint2 x = in.columns_of_apart(first, lane);
#pragma unroll
  for (int n = 0; n < 4; ++n) d[n] = 0;
#pragma unroll
  for (int k = 0; k < C::kApart; ++k) {
    uint32_t a[4];
    UnitOperand<kType>::get(unit, first + k, a);
    const uint2 own = C::kApart == 1 ? x : if_so(is_own(lane / 8 / C::kCount, k), x);
    mma_bytes<UnitOperand<kType>::kSigned>(d, a, own);
  }
}

/// Q4_K and Q5_K.
template <GgmlType kType, uint32_t kRows>
struct FixedRowsSuperMin {
  template <class Unit, class Inputs>
  static __device__ __forceinline__ void add(const Unit& unit, const Inputs& in, int lane,
                                             RowSums<kRows>& acc) {
    using C = RowColumns<kRows>;
    constexpr bool kFive = kType == GgmlType::kQ5_K;
    const int t = lane % 4, row = t % C::kCount;
    const float* sums_of_row = in.sums_of(row);
    const float inverse = in.inverse(row);
    float scale[2], min[2];
    uint32_t scales[2][2], mins[2][2];  // of blocks 0 to 3 and 4 to 7
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 meta = unit.meta(h);
      scale[h] = half_bits(meta.x & 0xFFFFu) * inverse;
      min[h] = half_bits(meta.x >> 16) * -inverse;
      scales[h][0] = meta.y;
      scales[h][1] = (meta.w & 0x0F0F0F0Fu) | ((meta.y >> 2) & 0x30303030u);
      mins[h][0] = meta.z & 0x3F3F3F3Fu;
      mins[h][1] = ((meta.w >> 4) & 0x0F0F0F0Fu) | ((meta.z >> 2) & 0x30303030u);
    }
#pragma unroll
    for (int i = 0; i < C::kCount; ++i) {
      int d[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        apart_blocks<kType, kRows>(unit, in, half, i, lane, d[half]);
      const int j = C::kApart * i + t / C::kCount;  // the group of blocks
      const float2 sums = *reinterpret_cast<const float2*>(sums_of_row + 2 * j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto first = static_cast<int>(scales[h][0] >> (8 * j) & 63u),
                   second = static_cast<int>(scales[h][1] >> (8 * j) & 63u);
        const int high = first * d[0][2 * h] + second * d[1][2 * h],
                  low = first * d[0][2 * h + 1] + second * d[1][2 * h + 1];
        const float dot = fmaf(static_cast<float>(high), kFive ? 256.0f : 16.0f,
                               static_cast<float>(low) * (kFive ? 1.0f : 0.0625f));
        const uint32_t pair = (j < 2 ? mins[h][0] : mins[h][1]) >> (j % 2 * 16);
        const float fix = static_cast<float>(pair & 255u) * sums.x +
                          static_cast<float>((pair >> 8) & 255u) * sums.y;
        acc.part[h][i] = fmaf(scale[h], dot, fmaf(min[h], fix, acc.part[h][i]));
      }
    }
  }
};
template <uint32_t kRows>
struct FixedRows<GgmlType::kQ4_K, kRows> : FixedRowsSuperMin<GgmlType::kQ4_K, kRows> {};
template <uint32_t kRows>
struct FixedRows<GgmlType::kQ5_K, kRows> : FixedRowsSuperMin<GgmlType::kQ5_K, kRows> {};

/// Q6_K: groups are the halves of even and of odd blocks. Columns of two rows are both halves of a
/// block, those of four rows a half.
template <uint32_t kRows>
struct FixedRows<GgmlType::kQ6_K, kRows> {
  template <class Unit, class Inputs>
  static __device__ __forceinline__ void add(const Unit& unit, const Inputs& in, int lane,
                                             RowSums<kRows>& acc) {
    using C = RowColumns<kRows>;
    constexpr int kHalves = 2 / C::kApart;  // a product each
    const int t = lane % 4, row = t % C::kCount, half_of_lane = C::kApart == 2 ? t / 2 : 0;
    uint32_t scale[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const uint4 w = unit.meta(h);
      scale[h][0] = w.x;
      scale[h][1] = w.y;
      scale[h][2] = w.z;
      scale[h][3] = w.w;
    }
    int high[2][C::kCount] = {}, low[2][C::kCount] = {};
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      const uint2 x = in.columns(b, lane);
      uint32_t a[4];
      UnitOperand<GgmlType::kQ6_K>::get(unit, b, a);
#pragma unroll
      for (int k = 0; k < kHalves; ++k) {
        const bool second = C::kApart == 2 ? lane / 16 != 0 : k != 0;
        const uint32_t keep = second ? 0xFF00FF00u : 0x00FF00FFu;
        int d[4] = {};
        mma_bytes<true>(d, a, {x.x & keep, x.y & keep});
        const int i = C::kApart == 2 ? b % 2 : b % 2 * 2 + k;
        const uint32_t byte = 0x8880u + 0x1111u * (b % 2 * 2 + k + half_of_lane);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int s = signed_byte(scale[h][b / 2], byte);
          high[h][i] += s * d[2 * h];
          low[h][i] += s * d[2 * h + 1];
        }
      }
    }
    const uint32_t ds = unit.scales(0);
    const float inverse = in.inverse(row);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float d = half_bits(h == 0 ? ds & 0xFFFFu : ds >> 16) * 0.25f;
#pragma unroll
      for (int i = 0; i < C::kCount; ++i) {
        const float dot =
            fmaf(static_cast<float>(high[h][i]), 256.0f, static_cast<float>(low[h][i]));
        acc.part[h][i] = fmaf(d * inverse, dot, acc.part[h][i]);
      }
    }
  }
};

/// Q4_0 and Q8_0: lane t of a row reads the scales of every fourth block, as with one row, and has
/// the others of its neighbours.
template <GgmlType kType, uint32_t kRows>
struct FixedRowsSmall {
  template <class Unit, class Inputs>
  static __device__ __forceinline__ void add(const Unit& unit, const Inputs& in, int lane,
                                             RowSums<kRows>& acc) {
    using C = RowColumns<kRows>;
    constexpr bool kBytes = kType == GgmlType::kQ8_0;
    const int t = lane % 4;
    float sum[2][C::kCount] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t own_scales = unit.scales(half);
#pragma unroll
      for (int i = 0; i < C::kCount; ++i) {
        int d[4];
        apart_blocks<kType, kRows>(unit, in, half, i, lane, d);
        const int j = C::kApart * i + t / C::kCount;
        const uint32_t scales = __shfl_sync(~0u, own_scales, lane / 4 * 4 + j);
        sum[0][i] =
            fmaf(half_bits(scales & 0xFFFFu), static_cast<float>(d[0] * 256 + d[1]), sum[0][i]);
        sum[1][i] = fmaf(half_bits(scales >> 16), static_cast<float>(d[2] * 256 + d[3]), sum[1][i]);
      }
    }
    const float inverse = in.inverse(t % C::kCount);
    const float unit_scale = kBytes ? inverse : inverse * 0.0625f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < C::kCount; ++i)
        acc.part[h][i] = fmaf(unit_scale, sum[h][i], acc.part[h][i]);
    }
  }
};
template <uint32_t kRows>
struct FixedRows<GgmlType::kQ4_0, kRows> : FixedRowsSmall<GgmlType::kQ4_0, kRows> {};
template <uint32_t kRows>
struct FixedRows<GgmlType::kQ8_0, kRows> : FixedRowsSmall<GgmlType::kQ8_0, kRows> {};

}  // namespace sharpi::cuda
