// SPDX-License-Identifier: MIT
// A step's attention: products of a tile's keys with queries, and of its values with weights.
// Thread rule: device code.
#pragma once

#include <type_traits>

#include "cuda/kernels/attention/attention_step_sums.cuh"

namespace sharpi::cuda::step {

/// Where a lane reads in a stage.
struct LaneRead {
  uint32_t k[4];  // chunk c of keys (bf16: c % 2)
  uint32_t v[4];  // chunk c of values (bf16: all; q4: 64 dims c / 2 of row c % 2 of a pair)
  uint32_t scales;
};
template <class T>
__device__ __forceinline__ void read_keys(LaneRead* r) {
  using K = typename T::K;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if constexpr (kIndices<K::kType>) {
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) r->k[c] = kept(T::key_at(g, 16 * c + 4 * t));
  } else if constexpr (kBytes<K::kType>) {
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) r->k[c] = kept(g * K::kRow + 8 * t + 32 * (c ^ (g & 3u)));
  } else {
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) r->k[c] = kept(g * K::kRow + 16 * t + 64 * (c ^ (g & 1u)));
  }
}
template <class T, bool kPairs>
__device__ __forceinline__ void read_values(LaneRead* r) {
  using V = typename T::V;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const uint32_t values = T::kValues + 2 * t * V::kRow;
  if constexpr (kIndices<V::kType>) {
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      r->v[c] = kept(T::value_at(2 * t + c % 2, c / 2 * 32 + (kPairs ? 4 : 2) * g));
    }
  } else if constexpr (kBytes<V::kType>) {
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      r->v[c] = kept(values + (kPairs ? ((8 * g) ^ ((t & 1u) << 5)) + 64 * ((c ^ (t >> 1)) & 1u)
                                      : 4 * g + 32 * (c ^ t)));
    }
  } else {
    r->v[0] = kept(values + ((16 * g) ^ (t << 5)));
  }
}
template <class T, bool kPairs>
__device__ __forceinline__ LaneRead make_read() {
  LaneRead r = {};
  read_keys<T>(&r);
  read_values<T, kPairs>(&r);
  if (T::kCodes) r.scales = kept(T::kScales + threadIdx.x % 4 * 2 * 8);
  return r;
}

/// s[kEach * half + 2 * tile + i] of vector g + 8 * half, key 8 * tile + 2t + i.
template <class F, bool kPairs>
__device__ __forceinline__ void score_tile(const uint8_t* stage, const LaneRead& lane,
                                           const uint32_t (&q)[4 * F::kCount],
                                           const float (&worth)[2], float (&s)[F::kScores]) {
  using T = typename F::T;
  using K = typename T::K;
  using Codec = KeyCodec<K::kType, kSlice>;
  const uint8_t* scales = stage + lane.scales;
#pragma unroll
  for (uint32_t tile = 0; tile < T::kKeys / 8; ++tile) {
    uint32_t raw[Codec::kHalf];
#pragma unroll
    for (uint32_t c = 0; c < 4; ++c) {
      if constexpr (kIndices<K::kType>) {
        raw[c] = *reinterpret_cast<const uint32_t*>(stage + lane.k[c] + tile * 8 * K::kRow);
      } else if constexpr (kBytes<K::kType>) {
        const auto v = *reinterpret_cast<const uint2*>(stage + lane.k[c] + tile * 8 * K::kRow);
        raw[c * 2] = v.x, raw[c * 2 + 1] = v.y;
      } else {
        const uint8_t* at = stage + lane.k[c % 2] + tile * 8 * K::kRow + c / 2 * 128;
        const auto v = *reinterpret_cast<const uint4*>(at);
        raw[c * 4] = v.x, raw[c * 4 + 1] = v.y, raw[c * 4 + 2] = v.z, raw[c * 4 + 3] = v.w;
      }
    }
    float c[4];
    Codec::template multiply<kPairs, 4 * F::kCount>(raw, q, scales + tile * 64, 0, c);
#pragma unroll
    for (int i = 0; i < 2 * F::kHalves; ++i) {
      s[i / 2 * F::kEach + 2 * static_cast<int>(tile) + i % 2] =
          T::kCodes ? c[i] * worth[i / 2] : c[i];
    }
  }
}

/// Weights of 16 keys times what codes are multiplied with, and the scales of a block of 32 dims.
template <class F>
struct CodeWeights {
  __half2 p[2][F::kHalves];  // keys 2t, 2t + 1 and those eight behind them
  uint4 scales[2];

  __device__ __forceinline__ CodeWeights(const uint8_t* at, const float* w) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      scales[i] = *reinterpret_cast<const uint4*>(at + i * 64);
#pragma unroll
      for (int h = 0; h < F::kHalves; ++h) {
        p[i][h] = __floats2half2_rn(w[F::kEach * h + 2 * i] * kCodeWeight,
                                    w[F::kEach * h + 2 * i + 1] * kCodeWeight);
      }
    }
  }
  __device__ __forceinline__ uint32_t scaled(int i, int h, int block) const {
    const uint32_t pair =
        __byte_perm(block < 2 ? scales[i].x : scales[i].y, block < 2 ? scales[i].z : scales[i].w,
                    block % 2 == 0 ? 0x5410u : 0x7632u);
    const auto scale = reinterpret_cast<const __half2&>(pair);
    const __half2 x = __hmul2(ValueCodec<F::T::V::kType, kSlice>::bounded(scale), p[i][h]);
    return reinterpret_cast<const uint32_t&>(x);
  }
};

/// Four columns of two keys: codes + 128 as f16 subnormals.
__device__ __forceinline__ void spread_codes(uint32_t first, uint32_t other, uint32_t* x) {
  first ^= 0x80808080u, other ^= 0x80808080u;
  const uint32_t lo = __byte_perm(first, other, 0x5140), hi = __byte_perm(first, other, 0x7362);
  x[0] = __byte_perm(lo, 0, 0x4140), x[1] = __byte_perm(lo, 0, 0x4342);
  x[2] = __byte_perm(hi, 0, 0x4140), x[3] = __byte_perm(hi, 0, 0x4342);
}

/// The same of two keys' indices of levels, four or (kAll) eight columns: those of two columns lie
/// side by side before they are looked up, so that half of each word of levels is a pair.
template <bool kAll>
__device__ __forceinline__ void spread_levels(uint32_t first, uint32_t other, uint32_t* x) {
#pragma unroll
  for (int i = 0; i < (kAll ? 2 : 1); ++i) {
    const uint2 v = biased_levels_of(__byte_perm(first, other, i == 0 ? 0x5140u : 0x7362u));
    x[4 * i] = v.x & 0x00FF00FFu, x[4 * i + 1] = __byte_perm(v.x, 0, 0x4341);
    x[4 * i + 2] = v.y & 0x00FF00FFu, x[4 * i + 3] = __byte_perm(v.y, 0, 0x4341);
  }
}

/// The lane's codes of chunk c of two neighbouring rows, the first row's first: eight columns, or
/// four (!kPairs). rows: of the pair, or of those eight behind it.
template <class V, bool kPairs>
__device__ __forceinline__ void spread_rows(const uint8_t* rows, const LaneRead& lane, int c,
                                            uint32_t (&x)[8]) {
  if constexpr (kIndices<V::kType>) {
    const int at = kPairs ? 2 * c : c / 2 * 2;
    const uint8_t* from[2] = {rows + lane.v[at] + (kPairs ? 0 : c % 2 * 16),
                              rows + lane.v[at + 1] + (kPairs ? 0 : c % 2 * 16)};
    using Word = std::conditional_t<kPairs, uint32_t, uint16_t>;
    spread_levels<kPairs>(*reinterpret_cast<const Word*>(from[0]),
                          *reinterpret_cast<const Word*>(from[1]), x);
  } else if constexpr (kPairs) {
    const auto first = *reinterpret_cast<const uint2*>(rows + lane.v[c]);
    const auto other = *reinterpret_cast<const uint2*>(rows + lane.v[c] + V::kRow);
    spread_codes(first.x, other.x, x);
    spread_codes(first.y, other.y, x + 4);
  } else {
    spread_codes(*reinterpret_cast<const uint32_t*>(rows + lane.v[c]),
                 *reinterpret_cast<const uint32_t*>(rows + lane.v[c] + V::kRow), x);
  }
}

/// o += weights * codes of 16 keys, the part-th of the tile; weights take the scales. `bias`
/// collects what codes + 128 are too much. Up to 8 vectors: 64 dims a time, rows 0 to 7 of the
/// products are the first block of 32, rows 8 to 15 the second, columns are elements 8g + j; more:
/// a block a time, elements 4g + j.
template <class F, bool kPairs>
__device__ __forceinline__ void weigh_codes(const uint8_t* stage, const LaneRead& lane,
                                            uint32_t part, const float (&w)[F::kScores],
                                            Sums<F>& sums) {
  using T = typename F::T;
  using V = typename T::V;
  const uint8_t* rows = stage + part * 16 * V::kRow;
  const CodeWeights<F> weights(stage + lane.scales + (T::kKeys + 16 * part) * 8, w + 4 * part);
#pragma unroll
  for (int c = 0; c < (kPairs ? 2 : 4); ++c) {
    uint32_t a[4], x[2][8];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      a[2 * i] = weights.scaled(i, 0, kPairs ? 2 * c : c);
      a[2 * i + 1] = weights.scaled(i, kPairs ? 0 : 1, kPairs ? 2 * c + 1 : c);
      spread_rows<V, kPairs>(rows + static_cast<uint32_t>(i) * 8 * V::kRow, lane, c, x[i]);
    }
#pragma unroll
    for (int j = 0; j < (kPairs ? 8 : 4); ++j) {
      mma_16(false, kPairs ? sums.o[c][j] : sums.o[c / 2][c % 2 * 4 + j], a, x[0][j], x[1][j]);
    }
    mma_16(false, sums.bias[c], a, 0x80808080u, 0x80808080u);
  }
}

template <class F, bool kPairs>
__device__ __forceinline__ void weigh_wide(const uint8_t* stage, const LaneRead& lane,
                                           const float (&w)[F::kScores], Sums<F>& sums) {
  using V = typename F::T::V;
  const uint8_t* row = stage + lane.v[0];
  uint32_t p[4];
#pragma unroll
  for (int h = 0; h < F::kHalves; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float lo = w[4 * h + 2 * i], hi = w[4 * h + 2 * i + 1];
      p[2 * i + h] = pack_bf16(lo, hi);
      if (kPairs) p[2 * i + 1] = pack_rest(true, lo, hi, p[2 * i]);
    }
  }
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    uint32_t raw[16];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto v = *reinterpret_cast<const uint4*>(row + (i % 2 + i / 2 * 8) * V::kRow + c * 128);
      raw[4 * i] = v.x, raw[4 * i + 1] = v.y, raw[4 * i + 2] = v.z, raw[4 * i + 3] = v.w;
    }
    ValueCodec<V::kType, kSlice>::template multiply<kPairs>(raw, nullptr, 0, c, p, sums.o[c]);
  }
}

}  // namespace sharpi::cuda::step
