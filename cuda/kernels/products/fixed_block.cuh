// SPDX-License-Identifier: MIT
// Units of types with blocks of 32 times one row in fixed point (fixed_product.cuh), whose last
// unit in a panel may have fewer than eight blocks: what matvec.cu does with one row.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/fixed_product.cuh"

namespace sharpi::cuda {

/// What a block's codes are multiplied by and what is added to each product, for rows g and g + 8.
struct BlockScales {
  float scale[2], min[2];
};

/// Block b of a unit as the first operand, with the factors of the block that the lane owns.
template <GgmlType kType>
struct FixedBlock {
  static_assert(kType == GgmlType::kQ4_0 || kType == GgmlType::kQ8_0);
  static constexpr bool kSigned = true, kMins = false, kByNibble = false;
  static constexpr float kOffset = 0.0f;  // of the bytes
  static constexpr float kUnit = kType == GgmlType::kQ8_0 ? 1.0f : 0.0625f;
  static __device__ __forceinline__ void codes(const uint8_t* unit, int b, int lane,
                                               uint32_t (&a)[4]) {
    UnitOperand<kType>::get(MemoryUnit<kType>{unit, lane}, b, a);
  }
  static __device__ __forceinline__ BlockScales scales(const uint8_t* unit, int b, int lane) {
    constexpr uint32_t kBytes = Tile<kType>::kBlockBytes;
    const auto d = load_as<uint32_t>(unit + b * kBytes + kBytes - 32 + lane / 4 * 4);
    return {{half_bits(d & 0xFFFFu), half_bits(d >> 16)}, {}};
  }
};

/// Codes with an offset or a minimum: unsigned, kOffset taken off by the row's sum.
template <GgmlType kType>
struct FixedUnsigned {
  static constexpr bool kSigned = false, kMins = Tile<kType>::kMins, kByNibble = false;
  static constexpr float kOffset = Tile<kType>::kOffset, kUnit = 1.0f;
  static constexpr bool kFive = kType == GgmlType::kQ5_0 || kType == GgmlType::kQ5_1;
  static constexpr uint32_t kBytes = Tile<kType>::kBlockBytes;
  static __device__ __forceinline__ void codes(const uint8_t* unit, int b, int lane,
                                               uint32_t (&a)[4]) {
    const uint8_t* block = unit + b * kBytes;
    const auto w = load_as<uint2>(block + lane * 8);
    a[0] = w.x & 0x0F0F0F0Fu;
    a[1] = w.y & 0x0F0F0F0Fu;
    a[2] = (w.x >> 4) & 0x0F0F0F0Fu;
    a[3] = (w.y >> 4) & 0x0F0F0F0Fu;
    if constexpr (kFive) {
      const uint32_t high = load_as<uint16_t>(block + 256 + lane * 2);
      add_fifth_bits_of_bytes(__byte_perm(high, 0, 0x4140), a);
    }
  }
  static __device__ __forceinline__ BlockScales scales(const uint8_t* unit, int b, int lane) {
    if constexpr (Tile<kType>::kMins) {
      const auto d = load_as<uint2>(unit + b * kBytes + kBytes - 64 + lane / 4 * 8);
      return {{half_bits(d.x & 0xFFFFu), half_bits(d.y & 0xFFFFu)},
              {half_bits(d.x >> 16), half_bits(d.y >> 16)}};
    } else {
      const auto d = load_as<uint32_t>(unit + b * kBytes + kBytes - 32 + lane / 4 * 4);
      return {{half_bits(d & 0xFFFFu), half_bits(d >> 16)}, {}};
    }
  }
};
template <>
struct FixedBlock<GgmlType::kQ4_1> : FixedUnsigned<GgmlType::kQ4_1> {};
template <>
struct FixedBlock<GgmlType::kQ5_0> : FixedUnsigned<GgmlType::kQ5_0> {};
template <>
struct FixedBlock<GgmlType::kQ5_1> : FixedUnsigned<GgmlType::kQ5_1> {};

/// The positive ones of four numbers of MXFP4, zeros for the others: a selector whose sign bit is
/// set gives the sign of the byte it names, which is 0 for all.
__device__ __forceinline__ uint32_t fp4_bytes(uint32_t w) {
  uint32_t v;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(0x03020100u), "r"(0x0C080604u), "r"(w));
  return v;
}
template <>
struct FixedBlock<GgmlType::kMXFP4> {
  static constexpr bool kSigned = true, kMins = false, kByNibble = true;
  static constexpr float kOffset = 0.0f, kUnit = 1.0f;
  static constexpr uint32_t kBytes = Tile<GgmlType::kMXFP4>::kBlockBytes;
  /// The positive numbers, and what the negative ones are without their sign.
  static __device__ __forceinline__ void codes(const uint8_t* unit, int b, int lane,
                                               uint32_t (&a)[4], uint32_t (&negative)[4]) {
    const auto w = load_as<uint2>(unit + b * kBytes + lane * 8);
    const uint32_t x = w.x ^ 0x88888888u, y = w.y ^ 0x88888888u;
    a[0] = fp4_bytes(w.x);
    a[1] = fp4_bytes(w.y);
    a[2] = fp4_bytes(w.x >> 16);
    a[3] = fp4_bytes(w.y >> 16);
    negative[0] = fp4_bytes(x);
    negative[1] = fp4_bytes(y);
    negative[2] = fp4_bytes(x >> 16);
    negative[3] = fp4_bytes(y >> 16);
  }
  static __device__ __forceinline__ BlockScales scales(const uint8_t* unit, int b, int lane) {
    const uint32_t e = load_as<uint16_t>(unit + b * kBytes + 256 + lane / 4 * 2);
    return {{mxfp4_scale(e & 255u), mxfp4_scale(e >> 8)}, {}};
  }
};

/// acc += unit * in, of whose eight blocks the first n_blocks are there.
template <GgmlType kType>
__device__ __forceinline__ void add_blocks(const uint8_t* unit, int n_blocks, const FixedInputs& in,
                                           int lane, FixedSums& acc) {
  using B = FixedBlock<kType>;
  const int own = lane / 8, t = lane % 4;
  const auto half = [&](int h, int n) {
    auto x = load_as<uint2>(in.x + (4 * h + own) * 64);
    if constexpr (B::kByNibble) x = {__byte_perm(x.x, x.y, 0x5140), __byte_perm(x.x, x.y, 0x7362)};
    int d[4] = {}, minus[4] = {};
    const auto block = [&](int j) {
      const uint2 y = if_so(is_own(own, j), x);
      uint32_t a[4];
      if constexpr (B::kByNibble) {
        uint32_t negative[4];
        B::codes(unit, 4 * h + j, lane, a, negative);
        mma_bytes<true>(minus, negative, y);
      } else {
        B::codes(unit, 4 * h + j, lane, a);
      }
      mma_bytes<B::kSigned>(d, a, y);
    };
    if (n == 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) block(j);
    } else {
#pragma unroll 1
      for (int j = 0; j < n; ++j) block(j);
    }
    if constexpr (B::kByNibble) {
#pragma unroll
      for (int i = 0; i < 4; ++i) d[i] -= minus[i];
    }
    // A lane without a block has no products and no sum, and takes another's factors.
    const BlockScales s = B::scales(unit, 4 * h + min(t, n - 1), lane);
    const float sum = B::kMins || B::kOffset != 0.0f ? in.sums[4 * h + t] : 0.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float dot = fmaf(-B::kOffset, sum, static_cast<float>(d[2 * r] * 256 + d[2 * r + 1]));
      const float inverse = in.inverse * B::kUnit;
      acc.part[r] = fmaf(s.scale[r] * inverse, dot, acc.part[r]);
      if constexpr (B::kMins) acc.part[r] = fmaf(s.min[r] * in.inverse, sum, acc.part[r]);
    }
  };
  if (n_blocks == 8) {
#pragma unroll
    for (int h = 0; h < 2; ++h) half(h, 4);
  } else {
#pragma unroll 1
    for (int h = 0; 4 * h < n_blocks; ++h) half(h, min(n_blocks - 4 * h, 4));
  }
}

/// acc += unit * in for any type of tiles.
template <GgmlType kType>
__device__ __forceinline__ void add_unit(const uint8_t* unit, int n_blocks, const FixedInputs& in,
                                         int lane, FixedSums& acc) {
  if constexpr (Tile<kType>::kSuper) {
    FixedProduct<kType>::add(MemoryUnit<kType>{unit, lane}, in, lane, acc);
  } else {
    add_blocks<kType>(unit, n_blocks, in, lane, acc);
  }
}

}  // namespace sharpi::cuda
