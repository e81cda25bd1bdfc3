// SPDX-License-Identifier: MIT
// Weights in tiles to plain rows of f16, times kWeightUnit, for products by a library. A warp takes
// a unit (16 rows x 256 columns): all of its codes are asked for at once, and what is written are
// whole sectors of 32 bytes. Bound: memory, the quantised bytes once and twice the number of
// weights, which the library then finds in L2 as long as a slice fits there.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/gemm_tile.cuh"
#include "cuda/kernels/products/rows.cuh"
#include "cuda/kernels/products/tiles.cuh"
#include "cuda/kernels/products/weight_types.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kWarps = 8;

struct PlainTiles {
  const uint8_t* data;
  uint8_t* dst;
  uint64_t panel_bytes;
  uint32_t n_in, n_out, units, n_units;  // units: of a panel
};

__device__ __forceinline__ uint32_t pack_unit(float a, float b) {
  return half2_bits(__floats2half2_rn(a * kWeightUnit, b * kWeightUnit));
}

/// Block b of 32 columns of a unit: rows g and g + 8, columns 4 t .. and 16 + 4 t ...
template <GgmlType kType>
__device__ __forceinline__ void convert_block(const uint8_t* unit,
                                              const typename Tile<kType>::Meta& meta, int b,
                                              int lane, uint2 (&out)[2][2]) {
  using T = Tile<kType>;
  uint32_t a[8];
  T::codes(unit, b, lane, a);
  const Scales s = T::scales(unit, meta, b, lane);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 v = tile_values<kType>(a, s, meta, h, i);
      out[h][i] = {pack_unit(v.x, v.y), pack_unit(v.z, v.w)};
    }
  }
}

template <GgmlType kType>
__global__ void __launch_bounds__(kWarps * 32)
    plain_tiles_kernel(const __grid_constant__ PlainTiles p) {
  using T = Tile<kType>;
  constexpr uint32_t kBlockBytes = block_shape(kType).bytes * kPanelRows;
  const uint32_t at = blockIdx.x * kWarps + threadIdx.x / 32;
  if (at >= p.n_units) return;
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const uint32_t panel = at / p.units, u = at - panel * p.units;
  const uint32_t n_blocks = min(kUnitColumns / 32, p.n_in / 32 - u * (kUnitColumns / 32));
  const uint8_t* unit = p.data + panel * p.panel_bytes +
                        uint64_t{u} * (T::kSuper ? kBlockBytes : kBlockBytes * (kUnitColumns / 32));
  const typename T::Meta meta = T::meta(unit, lane);
  const uint32_t row = panel * kPanelRows + threadIdx.x % 32 / 4,
                 column = u * kUnitColumns + threadIdx.x % 4 * 4;
  uint8_t* to = p.dst + (uint64_t{row} * p.n_in + column) * 2;
  const uint64_t other = uint64_t{p.n_in} * 16;  // to row + 8
#pragma unroll
  for (uint32_t b = 0; b < kUnitColumns / 32; ++b) {
    if (b >= n_blocks) break;
    uint2 v[2][2];
    if constexpr (T::kSuper) {
      convert_block<kType>(unit, meta, static_cast<int>(b), lane, v);
    } else {
      convert_block<kType>(unit + b * kBlockBytes, meta, 0, lane, v);
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h) {
      if (row + 8 * h >= p.n_out) continue;
#pragma unroll
      for (uint32_t i = 0; i < 2; ++i)
        *reinterpret_cast<uint2*>(to + h * other + b * 64 + i * 32) = v[h][i];
    }
  }
}

using Kernel = void (*)(PlainTiles);
Kernel kernel_of(GgmlType type) {
  Kernel kernel = nullptr;
  TiledTypes::visit(type, [&]<GgmlType kType>() { kernel = plain_tiles_kernel<kType>; });
  return kernel;
}

}  // namespace

Status launch_plain_tiles(const F16TilesParams& f, cudaStream_t stream) {
  SHARPI_TRY(check_weights("plain_tiles", f.type, WeightLayout::kTiles));
  if (f.layout != WeightLayout::kTiles || f.n_in % 32 != 0 || f.n_out == 0 || f.n_experts != 1) {
    return Status::error(Code::kInternal, "kernel plain_tiles cannot take %u rows of %u", f.n_out,
                         f.n_in);
  }
  PlainTiles p = {};
  p.data = f.data;
  p.dst = f.dst;
  p.panel_bytes = ggml_row_bytes(f.type, f.n_in) * kPanelRows;
  p.n_in = f.n_in;
  p.n_out = f.n_out;
  p.units = (f.n_in + kUnitColumns - 1) / kUnitColumns;
  p.n_units = p.units * ((f.n_out + kPanelRows - 1) / kPanelRows);
  LaunchShape shape;
  shape.grid = dim3((p.n_units + kWarps - 1) / kWarps);
  shape.block = dim3(kWarps * 32);
  shape.stream = stream;
  return launch_kernel("plain_tiles", shape, kernel_of(f.type), p);
}

}  // namespace sharpi::cuda
