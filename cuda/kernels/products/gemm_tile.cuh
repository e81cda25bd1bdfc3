// SPDX-License-Identifier: MIT
// What the tensor-core kernels of many rows share: a lane's f16 fragments of a weight panel, made
// from a unit in shared memory, and where a block's panels and outputs are.
// Thread rule: device code.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/gemm_plan.h"
#include "cuda/kernels/products/stream.cuh"
#include "cuda/kernels/products/tiles.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {

__device__ __forceinline__ uint32_t half2_bits(__half2 h) {
  return reinterpret_cast<const uint32_t&>(h);
}
__device__ __forceinline__ __half2 as_half2(uint32_t w) {
  return reinterpret_cast<const __half2&>(w);
}

/// Scale and minimum (as it is subtracted) of one block of 32 columns, times kWeightUnit:
/// s[row half][column half], m[row half].
struct BlockScales {
  float s[2][2], m[2];
};

/// Block b of a unit of Q4_K or Q5_K; rows: its 16-byte entries.
__device__ __forceinline__ BlockScales super_min_scales(const uint8_t* rows, uint32_t b, int lane) {
  BlockScales r;
  const uint32_t shift = b % 4 * 8;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const auto w = load_as<uint4>(rows + (lane / 4 + 8 * h) * 16);
    uint32_t sc = w.y >> shift, mn = w.z >> shift;
    if (b < 4) {
      sc &= 63u;
      mn &= 63u;
    } else {
      const uint32_t low = w.w >> shift;
      sc = (low & 15u) | ((sc >> 2) & 0x30u);
      mn = ((low >> 4) & 15u) | ((mn >> 2) & 0x30u);
    }
    r.s[h][0] = r.s[h][1] = half_bits(w.x & 0xFFFFu) * kWeightUnit * static_cast<float>(sc);
    r.m[h] = half_bits(w.x >> 16) * kWeightUnit * static_cast<float>(mn);
  }
  return r;
}

template <GgmlType kType>
__device__ __forceinline__ BlockScales block_scales(const uint8_t* unit, uint32_t b, int lane) {
  if constexpr (kType == GgmlType::kQ4_K) {
    return super_min_scales(unit + 2048, b, lane);
  } else if constexpr (kType == GgmlType::kQ5_K) {
    return super_min_scales(unit + 2560, b, lane);
  } else if constexpr (kType == GgmlType::kQ6_K) {
    BlockScales r;
    const auto d = load_as<uint32_t>(unit + 3328 + lane / 4 * 4);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float f = half_bits(h == 0 ? d & 0xFFFFu : d >> 16) * kWeightUnit;
      const auto w = load_as<uint16_t>(unit + 3072 + (lane / 4 + 8 * h) * 16 + b * 2);
      r.s[h][0] = f * static_cast<float>(static_cast<int8_t>(w));
      r.s[h][1] = f * static_cast<float>(static_cast<int8_t>(w >> 8));
      r.m[h] = 0.0f;
    }
    return r;
  } else {
    const Scales s = Tile<kType>::scales(unit, {}, static_cast<int>(b), lane);
    return {{{s.s[0][0] * kWeightUnit, s.s[0][1] * kWeightUnit},
             {s.s[1][0] * kWeightUnit, s.s[1][1] * kWeightUnit}},
            {s.m[0] * kWeightUnit, s.m[1] * kWeightUnit}};
  }
}

/// Block b (32 columns) of a unit as A fragments of two products of 16 columns: a[k16][4].
template <GgmlType kType>
__device__ __forceinline__ void unpack_block(const uint8_t* unit, const BlockScales& scales,
                                             uint32_t b, int lane, uint32_t (&a)[2][4]) {
  if constexpr (kType == GgmlType::kF16) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const auto v = load_as<uint4>(unit + b * 1024 + k * 512 + lane * 16);
      a[k][0] = v.x;
      a[k][1] = v.y;
      a[k][2] = v.z;
      a[k][3] = v.w;
    }
  } else if constexpr (kType == GgmlType::kMXFP4) {
    uint32_t codes[8];
    Tile<kType>::codes(unit, static_cast<int>(b), lane, codes);
    const __half2 up = __float2half2_rn(0x1p14f);  // half of the integers that scales are for
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const __half2 s = __float2half2_rn(2.0f * scales.s[h][i]);
        a[i][h] = half2_bits(__hmul2(__hmul2(as_half2(codes[4 * h + 2 * i]), up), s));
        a[i][2 + h] = half2_bits(__hmul2(__hmul2(as_half2(codes[4 * h + 2 * i + 1]), up), s));
      }
    }
  } else {
    using T = Tile<kType>;
    constexpr float kOdd = T::kOddShift == 4 ? 16.0f : 1.0f;
    constexpr uint32_t kMagic = 0x64006400u;  // 1024: the code is its last bits
    const __half2 even_base = __float2half2_rn(1024.0f + T::kOffset),
                  odd_base = __float2half2_rn(1024.0f + kOdd * T::kOffset);
    uint32_t codes[8];
    T::codes(unit, static_cast<int>(b), lane, codes);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const __half2 min = __float2half2_rn(-scales.m[h]);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float s = scales.s[h][i];
        const __half2 even = __float2half2_rn(s), odd = __float2half2_rn(s * (1.0f / kOdd));
        const __half2 q0 = __hsub2(as_half2(codes[4 * h + 2 * i] | kMagic), even_base);
        const __half2 q1 = __hsub2(as_half2(codes[4 * h + 2 * i + 1] | kMagic), odd_base);
        if constexpr (T::kMins) {
          a[i][h] = half2_bits(__hfma2(q0, even, min));
          a[i][2 + h] = half2_bits(__hfma2(q1, odd, min));
        } else {
          a[i][h] = half2_bits(__hmul2(q0, even));
          a[i][2 + h] = half2_bits(__hmul2(q1, odd));
        }
      }
    }
  }
}
/// Scales of block b from a unit's Meta: b is known to the compiler, so that a byte is one
/// conversion.
template <GgmlType kType>
__device__ __forceinline__ BlockScales meta_scales(const uint8_t* unit,
                                                   const typename Tile<kType>::Meta& meta, int b,
                                                   int lane) {
  using T = Tile<kType>;
  const Scales s = T::scales(unit, meta, b, lane);
  BlockScales r;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float unit_d = kWeightUnit, unit_min = kWeightUnit;
    if constexpr (T::kSuper) {
      unit_d = meta.d[h];
      unit_min = meta.dmin[h];
    }
    r.s[h][0] = s.s[h][0] * unit_d;
    r.s[h][1] = s.s[h][1] * unit_d;
    r.m[h] = s.m[h] * unit_min;
  }
  return r;
}

/// The same with scales read for this block alone.
template <GgmlType kType>
__device__ __forceinline__ void load_block(const uint8_t* unit, uint32_t b, int lane,
                                           uint32_t (&a)[2][4]) {
  if constexpr (kType == GgmlType::kF16) {
    unpack_block<kType>(unit, {}, b, lane, a);
  } else {
    unpack_block<kType>(unit, block_scales<kType>(unit, b, lane), b, lane, a);
  }
}
/// The same, zero past the end (types of 32 columns, n_in an odd multiple of 32).
template <GgmlType kType>
__device__ __forceinline__ void load_block_or_zero(const uint8_t* unit, uint32_t b, bool past_end,
                                                   int lane, uint32_t (&a)[2][4]) {
  load_block<kType>(unit, b, lane, a);
  if constexpr (kType != GgmlType::kF16) {
    if (!Tile<kType>::kSuper && past_end) {
#pragma unroll
      for (int k = 0; k < 2; ++k) a[k][0] = a[k][1] = a[k][2] = a[k][3] = 0;
    }
  }
}

/// (row tile, weight tile) of a block. Neighbours share weights; of experts they share rows,
/// because an expert has few tiles of rows and the rows of all experts do not fit in the caches.
__device__ __forceinline__ uint2 block_place(const GemmParams& p) {
  return p.tiles != nullptr ? make_uint2(blockIdx.y, blockIdx.x)
                            : make_uint2(blockIdx.x, blockIdx.y);
}

/// The rows of a block of the grid; n_rows 0: nothing to do.
__device__ __forceinline__ RowTile find_row_tile(const GemmParams& p, uint32_t index,
                                                 uint32_t rows_per_tile) {
  RowTile r = {0, index * rows_per_tile, 0, 0};
  if (p.tiles == nullptr) {
    r.n_rows = min(rows_per_tile, p.n_rows - r.first);
    return r;
  }
  if (index >= *p.n_tiles) return r;
  r = p.tiles[index];
  r.expert -= p.first_expert;
  if (r.expert >= p.n_experts) r.n_rows = 0;
  return r;
}

/// A panel of a task; past the end: the last one, not stored.
struct WarpPanel {
  const GemmTask* task;
  const uint8_t* data;
  uint32_t panel;
  bool store;
};
__device__ __forceinline__ WarpPanel make_warp_panel(const GemmTask* task, uint32_t panel,
                                                     uint32_t expert) {
  const uint32_t last = (task->n_out + kPanelRows - 1) / kPanelRows - 1, at = min(panel, last);
  return {task, task->data + expert * task->expert_bytes + at * task->panel_bytes, at,
          panel <= last};
}

/// acc *= the factors of its rows of x; factor: shared, of the tile's rows.
template <uint32_t kGroups>
__device__ __forceinline__ void scale_rows(const float* factor, float (&acc)[kGroups][4],
                                           uint32_t lane) {
#pragma unroll
  for (uint32_t n = 0; n < kGroups; ++n) {
    const float2 f = *reinterpret_cast<const float2*>(factor + 8 * n + lane % 4 * 2);
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) acc[n][e] *= e % 2 == 0 ? f.x : f.y;
  }
}

/// acc += the panel's biases, of the expert with number id.
template <uint32_t kGroups>
__device__ __forceinline__ void add_bias(const WarpPanel& w, uint32_t id, float (&acc)[kGroups][4],
                                         uint32_t lane) {
  if (w.task->bias == nullptr) return;
  const uint32_t n_out = w.task->n_out, o = w.panel * kPanelRows + lane / 4;
  const float* from = w.task->bias + uint64_t{id} * n_out;
  const float bias[2] = {o < n_out ? from[o] : 0.0f, o + 8 < n_out ? from[o + 8] : 0.0f};
#pragma unroll
  for (uint32_t n = 0; n < kGroups; ++n) {
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) acc[n][e] += bias[e / 2];
  }
}

/// What kSquare makes of a panel's sums.
template <uint32_t kGroups>
__device__ __forceinline__ void square_sums(float (&acc)[kGroups][4]) {
#pragma unroll
  for (uint32_t n = 0; n < kGroups; ++n) {
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) acc[n][e] = square_value(acc[n][e]);
  }
}

/// Stores (or adds) a panel's outputs of groups [first, last) of eight rows of x. Several loads are
/// in flight before the first store: the compiler cannot move them across one.
template <uint32_t kGroups>
__device__ __forceinline__ void store_panel(const GemmParams& p, const WarpPanel& w,
                                            const RowTile& rows, const float (&acc)[kGroups][4],
                                            uint32_t first, uint32_t last, uint32_t lane) {
  if (!w.store) return;
  constexpr uint32_t kBatch = 4;
  const uint32_t o = w.panel * kPanelRows + lane / 4, row0 = rows.first + lane % 4 * 2;
  const uint32_t end = rows.first + rows.n_rows;
  const bool valid[2] = {o < w.task->n_out, o + 8 < w.task->n_out};
  const uint64_t stride = w.task->y_stride;
  float* y = w.task->y + row0 * stride + o;
#pragma unroll
  for (uint32_t n = 0; n < kGroups; n += kBatch) {
    if (n < first || n >= last || row0 + 8 * n >= end) continue;
    float old[kBatch][4] = {};
    if (p.epilogue == Epilogue::kAdd) {
#pragma unroll
      for (uint32_t k = 0; k < kBatch; ++k) {
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) {
          const uint32_t r = 8 * (n + k) + e % 2;
          if (valid[e / 2] && row0 + r < end) old[k][e] = y[r * stride + e / 2 * 8];
        }
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < kBatch; ++k) {
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e) {
        const uint32_t r = 8 * (n + k) + e % 2;
        if (valid[e / 2] && row0 + r < end) y[r * stride + e / 2 * 8] = acc[n + k][e] + old[k][e];
      }
    }
  }
}

}  // namespace sharpi::cuda
