// SPDX-License-Identifier: MIT
// What the products of many rows read: rows of x as an f16 image (gemm.h), and weights of rare
// types as f16 tiles. Image: one block per row, two passes over it (the second from the caches):
// squares and largest element, then conversion; 16 columns per thread at a time. Tiles: one warp
// per 16 x 32 piece. Bound: reads and writes everything once.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/gemm_tile.cuh"
#include "cuda/kernels/products/rows.cuh"
#include "cuda/kernels/products/tiles.cuh"
#include "cuda/kernels/products/weight_types.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kKept = 2;  // groups of 16 columns of a thread that stay in registers

struct Group {
  float4 v[4];  // 16 columns, norm weights applied
};

__device__ __forceinline__ Group load_group(const StageParams& p, const float* x, uint32_t column,
                                            float* squares) {
  Group g;
#pragma unroll
  for (uint32_t k = 0; k < 4; ++k) {
    const uint32_t c = column + 4 * k;
    float4 v = c < p.n_in ? *reinterpret_cast<const float4*>(x + c) : float4{};
    *squares += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    if (p.norm_weight != nullptr && c < p.n_in) {
      const float4 w = *reinterpret_cast<const float4*>(p.norm_weight + c);
      v = {v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w};
    }
    g.v[k] = v;
  }
  return g;
}
__device__ __forceinline__ float largest(const Group& g) {
  float m = 0.0f;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    m = fmaxf(
        m, fmaxf(fmaxf(fabsf(g.v[k].x), fabsf(g.v[k].y)), fmaxf(fabsf(g.v[k].z), fabsf(g.v[k].w))));
  }
  return m;
}

/// Logical columns 0..7 of 16 are 4 t, 4 t + 1 (t < 4), logical columns 8..15 4 t + 2, 4 t + 3.
__device__ __forceinline__ void store_group(const StageParams& p, const Group& g, uint32_t group,
                                            uint32_t row, float scale) {
  uint4 lo, hi;
  const auto pack = [&](float a, float b) {
    return half2_bits(__floats2half2_rn(a * scale, b * scale));
  };
  lo = {pack(g.v[0].x, g.v[0].y), pack(g.v[1].x, g.v[1].y), pack(g.v[2].x, g.v[2].y),
        pack(g.v[3].x, g.v[3].y)};
  hi = {pack(g.v[0].z, g.v[0].w), pack(g.v[1].z, g.v[1].w), pack(g.v[2].z, g.v[2].w),
        pack(g.v[3].z, g.v[3].w)};
  uint8_t* line = p.image + (uint64_t{group / 4} * p.image_rows + row) * kImageRowBytes;
  const uint32_t piece = group % 4 * 2, swizzle = row % 8;
  *reinterpret_cast<uint4*>(line + (piece ^ swizzle) * 16) = lo;
  *reinterpret_cast<uint4*>(line + ((piece + 1) ^ swizzle) * 16) = hi;
}

__global__ void __launch_bounds__(kThreads)
    stage_image_kernel(const __grid_constant__ StageParams p) {
  __shared__ float2 part[kThreads / 32];
  grid_dependents_launch();
  grid_dependency_wait();
  const uint32_t row = blockIdx.x;
  int64_t from = p.row_ids != nullptr ? p.row_ids[row] : static_cast<int64_t>(row);
  if (from < 0) return;
  if (p.same_rows) from = row;
  const float* x = p.x + static_cast<uint64_t>(from) * p.x_stride;
  const uint32_t n_groups = (p.n_in + kImageColumns - 1) / kImageColumns * 4;

  float squares = 0.0f, amax = 0.0f;
  Group kept[kKept];
#pragma unroll
  for (uint32_t k = 0; k < kKept; ++k) {
    kept[k] = load_group(p, x, (threadIdx.x + k * kThreads) * 16, &squares);
    amax = fmaxf(amax, largest(kept[k]));
  }
  for (uint32_t g = threadIdx.x + kKept * kThreads; g < n_groups; g += kThreads)
    amax = fmaxf(amax, largest(load_group(p, x, g * 16, &squares)));
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    squares += __shfl_xor_sync(~0u, squares, d);
    amax = fmaxf(amax, __shfl_xor_sync(~0u, amax, d));
  }
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = {squares, amax};
  __syncthreads();
  squares = amax = 0.0f;
  for (const float2 v : part) {
    squares += v.x;
    amax = fmaxf(amax, v.y);
  }

  // The power of two that brings amax to [2^14, 2^15); its inverse with the weights' unit.
  const uint32_t e = min(max(__float_as_uint(amax) >> 23, 15u), 240u);
  const float scale = __uint_as_float((268u - e) << 23);
  if (threadIdx.x == 0) {
    float f = p.image != nullptr ? __uint_as_float((e - 14u) << 23) * (1.0f / kWeightUnit) : 1.0f;
    if (p.norm_weight != nullptr) f *= rsqrtf(squares / static_cast<float>(p.n_in) + p.norm_eps);
    if (p.row_scale != nullptr) f *= p.row_scale[from];
    p.factor[row] = f;
  }
  if (p.image == nullptr) return;
#pragma unroll
  for (uint32_t k = 0; k < kKept; ++k) {
    const uint32_t g = threadIdx.x + k * kThreads;
    if (g < n_groups) store_group(p, kept[k], g, row, scale);
  }
  for (uint32_t g = threadIdx.x + kKept * kThreads; g < n_groups; g += kThreads)
    store_group(p, load_group(p, x, g * 16, &squares), g, row, scale);
}

constexpr uint32_t kTileWarps = 4;
constexpr uint32_t kMaxGridY = 65535;

__device__ __forceinline__ uint32_t pack_unit(float a, float b) {
  return half2_bits(__floats2half2_rn(a * kWeightUnit, b * kWeightUnit));
}
/// Both fragments of a lane: v[row half][column half].
__device__ __forceinline__ void store_fragments(uint8_t* block, const float4 (&v)[2][2],
                                                uint32_t lane) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint4 w = {pack_unit(v[0][i].x, v[0][i].y), pack_unit(v[1][i].x, v[1][i].y),
                     pack_unit(v[0][i].z, v[0][i].w), pack_unit(v[1][i].z, v[1][i].w)};
    *reinterpret_cast<uint4*>(block + i * 512 + lane * 16) = w;
  }
}

/// The same as elements of plain rows.
__device__ __forceinline__ void store_plain(const F16TilesParams& p, uint32_t first_row,
                                            uint32_t block, const float4 (&v)[2][2],
                                            uint32_t lane) {
#pragma unroll
  for (uint32_t h = 0; h < 2; ++h) {
    const uint32_t row = first_row + lane / 4 + 8 * h;
#pragma unroll
    for (uint32_t i = 0; i < 2; ++i) {
      const uint32_t c = block * 32 + 16 * i + lane % 4 * 4;
      if (row >= p.n_out || c >= p.n_in) continue;
      *reinterpret_cast<uint2*>(p.dst + (uint64_t{row} * p.n_in + c) * 2) = {
          pack_unit(v[h][i].x, v[h][i].y), pack_unit(v[h][i].z, v[h][i].w)};
    }
  }
}

template <GgmlType kType>
__device__ __forceinline__ void tile_block(const uint8_t* panel, uint32_t block, uint32_t lane,
                                           float4 (&v)[2][2]) {
  using T = Tile<kType>;
  constexpr uint32_t kBlockColumn = block_shape(kType).bytes * kPanelRows;
  const uint8_t* unit = panel + (T::kSuper ? block / 8 : block) * kBlockColumn;
  const int b = T::kSuper ? static_cast<int>(block % 8) : 0, l = static_cast<int>(lane);
  const typename T::Meta meta = T::meta(unit, l);
  uint32_t a[8];
  T::codes(unit, b, l, a);
  const Scales s = T::scales(unit, meta, b, l);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) v[h][i] = tile_values<kType>(a, s, meta, h, i);
  }
}

__device__ __noinline__ void any_tile_block(GgmlType type, const uint8_t* panel, uint32_t block,
                                            uint32_t lane, float4 (&v)[2][2]) {
  with_type_of<TiledTypes>(type,
                           [&]<GgmlType kType>() { tile_block<kType>(panel, block, lane, v); });
}

/// Grid (blocks of 32 columns / warps, panels).
__global__ void __launch_bounds__(kTileWarps * 32)
    f16_tiles_kernel(const __grid_constant__ F16TilesParams p, uint64_t row_bytes,
                     uint32_t n_panels) {
  __shared__ float values[kTileWarps][kPanelRows][36];
  grid_dependency_wait();
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t block = blockIdx.x * kTileWarps + warp;
  const uint32_t n_blocks = (p.n_in + kImageColumns - 1) / kImageColumns * 2;
  if (block >= n_blocks) return;
  const uint8_t* data = p.data + blockIdx.z * p.expert_bytes;
  uint8_t* dst = p.dst + blockIdx.z * (uint64_t{n_panels} * n_blocks * 1024);
  for (uint32_t panel = blockIdx.y; panel < n_panels; panel += gridDim.y) {
    const uint8_t* from = data + uint64_t{panel} * kPanelRows * row_bytes;
    uint8_t* to = dst + (uint64_t{panel} * n_blocks + block) * 1024;
    float4 v[2][2] = {};
    if (p.layout == WeightLayout::kTiles) {
      if (block * 32 < p.n_in) any_tile_block(p.type, from, block, lane, v);
    } else {
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const uint32_t row = lane / 4 + 8 * k, column = block * 32 + lane % 4 * 8;
        float w[8] = {};
        if (panel * kPanelRows + row < p.n_out && column < p.n_in)
          row_values(p.type, from + row * row_bytes, column, w);
#pragma unroll
        for (uint32_t n = 0; n < 8; ++n) values[warp][row][lane % 4 * 8 + n] = w[n];
      }
      __syncwarp();
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          v[h][i] = *reinterpret_cast<const float4*>(
              &values[warp][lane / 4 + 8 * h][16 * i + lane % 4 * 4]);
        }
      }
      __syncwarp();
    }
    if (p.plain) {
      store_plain(p, panel * kPanelRows, block, v, lane);
    } else {
      store_fragments(to, v, lane);
    }
  }
}

}  // namespace

Status launch_stage_image(const StageParams& p, bool pdl, cudaStream_t stream) {
  if (p.n_rows == 0 || p.x_stride % 4 != 0 || p.n_in % 4 != 0 || p.factor == nullptr) {
    return Status::error(
        Code::kInternal,
        "kernel stage_image cannot take %u rows of %u, or lacks the factors of rows", p.n_rows,
        p.n_in);
  }
  LaunchShape shape;
  shape.grid = dim3(p.n_rows);
  shape.block = dim3(kThreads);
  shape.stream = stream;
  shape.pdl = pdl;
  return launch_kernel("stage_image", shape, stage_image_kernel, p);
}

Status launch_f16_tiles(const F16TilesParams& p, cudaStream_t stream) {
  if (p.n_out == 0 || p.n_in % 8 != 0 || p.dst == nullptr || p.n_experts == 0) {
    return Status::error(Code::kInternal,
                         "kernel f16_tiles cannot take %u rows of %u, or lacks a place for them",
                         p.n_out, p.n_in);
  }
  SHARPI_TRY(check_weights("f16_tiles", p.type, p.layout));
  const uint32_t n_panels = (p.n_out + kPanelRows - 1) / kPanelRows;
  LaunchShape shape;
  shape.grid = dim3((image_blocks(p.n_in) * 2 + kTileWarps - 1) / kTileWarps,
                    std::min(n_panels, kMaxGridY), p.n_experts);
  shape.block = dim3(kTileWarps * 32);
  shape.stream = stream;
  return launch_kernel("f16_tiles", shape, f16_tiles_kernel, p, ggml_row_bytes(p.type, p.n_in),
                       n_panels);
}

}  // namespace sharpi::cuda
