// SPDX-License-Identifier: MIT
// y[r][o] = f[r] sum_i W[o][i] x[r][i] for many rows in f32: exact arithmetic, routers. A block
// computes 64 rows of W (of gate and of up when gated) times 64 rows of x: 256 threads, 4 x 4
// outputs each (twice when gated), 32 columns at a time through shared memory, dequantised on the
// way in as dequantize_row does. Every sum runs over the columns in order, one chain.
// Shared memory: 2 or 3 tiles of 32 x 68 floats. Bound: f32 arithmetic.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/gemm_tile.cuh"
#include "cuda/kernels/products/rows.cuh"
#include "cuda/kernels/products/tiles.cuh"
#include "cuda/kernels/products/weight_types.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kOut = 64;      // rows of W of a block
constexpr uint32_t kColumns = 32;  // that are multiplied at a time
constexpr uint32_t kPitch = 68;

using Tile32 = float[kColumns][kPitch];

struct Outputs {
  const GemmTask* task;
  const uint8_t* data;  // of the expert
  uint32_t first;       // row of W
};

template <GgmlType kType>
__device__ __forceinline__ void tile_piece(const uint8_t* panel, uint32_t block, int lane,
                                           uint32_t row, Tile32& w) {
  using T = Tile<kType>;
  constexpr uint32_t kBlockColumn = block_shape(kType).bytes * kPanelRows;
  const uint8_t* unit = panel + uint64_t{T::kSuper ? block / 8 : block} * kBlockColumn;
  const int b = T::kSuper ? static_cast<int>(block % 8) : 0;
  const typename T::Meta meta = T::meta(unit, lane);
  uint32_t a[8];
  T::codes(unit, b, lane, a);
  const Scales s = T::scales(unit, meta, b, lane);
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 v = tile_values<kType>(a, s, meta, h, i);
      const uint32_t r = row + static_cast<uint32_t>(lane / 4 + 8 * h),
                     c = static_cast<uint32_t>(16 * i + lane % 4 * 4);
      w[c][r] = v.x;
      w[c + 1][r] = v.y;
      w[c + 2][r] = v.z;
      w[c + 3][r] = v.w;
    }
  }
}

/// Columns [32 block, + 32) of 64 rows of W; rows past the end are zero.
__device__ __forceinline__ void load_weights(const Outputs& o, uint32_t n_in, uint32_t block,
                                             Tile32& w) {
  const uint32_t warp = threadIdx.x / 32;
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (o.task->layout == WeightLayout::kRows) {
    const uint32_t row = threadIdx.x / 4, column = threadIdx.x % 4 * 8;
    float v[8] = {};
    if (o.first + row < o.task->n_out && block * kColumns + column < n_in) {
      row_values(o.task->type, o.data + (o.first + row) * (o.task->panel_bytes / kPanelRows),
                 block * kColumns + column, v);
    }
#pragma unroll
    for (uint32_t n = 0; n < 8; ++n) w[column + n][row] = v[n];
    return;
  }
  if (warp >= kOut / kPanelRows) return;
  const uint32_t row = warp * kPanelRows;
  if (o.first + row >= o.task->n_out) {
    for (uint32_t i = static_cast<uint32_t>(lane); i < kColumns * kPanelRows; i += 32)
      w[i / kPanelRows][row + i % kPanelRows] = 0.0f;
    return;
  }
  const uint8_t* panel = o.data + (o.first + row) / kPanelRows * o.task->panel_bytes;
  with_type_of<TiledTypes>(
      o.task->type, [&]<GgmlType kType>() { tile_piece<kType>(panel, block, lane, row, w); });
}

/// The same columns of the tile's rows of x, norm weights applied.
__device__ __forceinline__ void load_inputs(const GemmParams& p, const float* row, uint32_t block,
                                            Tile32& x) {
  const uint32_t r = threadIdx.x / 4;
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t c = threadIdx.x % 4 * 8 + 4 * k, column = block * kColumns + c;
    float4 v = {};
    if (row != nullptr && column < p.n_in) {
      v = *reinterpret_cast<const float4*>(row + column);
      if (p.norm_weight != nullptr) {
        const float4 n = *reinterpret_cast<const float4*>(p.norm_weight + column);
        v = {v.x * n.x, v.y * n.y, v.z * n.z, v.w * n.w};
      }
    }
    x[c][r] = v.x;
    x[c + 1][r] = v.y;
    x[c + 2][r] = v.z;
    x[c + 3][r] = v.w;
  }
}

/// What a thread brings of the next columns while those before are multiplied, where W is f32 as
/// it is: eight columns of a row of x, of the norm's weights and of a row of W.
struct Coming {
  float4 x[2], norm[2], w[2];
};
__device__ __forceinline__ void fetch(const GemmParams& p, const float* row, const Outputs& out,
                                      uint32_t block, Coming& v) {
  const uint32_t r = out.first + threadIdx.x / 4;
  const auto* w = reinterpret_cast<const float*>(out.data) + uint64_t{r} * p.n_in;
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    const uint32_t column = block * kColumns + threadIdx.x % 4 * 8 + 4 * k;
    const auto load = [&](bool there, const float* from) {
      return there && column < p.n_in ? *reinterpret_cast<const float4*>(from + column) : float4{};
    };
    v.x[k] = load(row != nullptr, row);
    v.norm[k] = load(p.norm_weight != nullptr, p.norm_weight);
    v.w[k] = load(r < out.task->n_out, w);
  }
}
__device__ __forceinline__ void store_columns(const float4 (&v)[2], Tile32& to) {
  const uint32_t r = threadIdx.x / 4, c = threadIdx.x % 4 * 8;
#pragma unroll
  for (uint32_t k = 0; k < 2; ++k) {
    to[c + 4 * k][r] = v[k].x;
    to[c + 4 * k + 1][r] = v[k].y;
    to[c + 4 * k + 2][r] = v[k].z;
    to[c + 4 * k + 3][r] = v[k].w;
  }
}
__device__ __forceinline__ void store(const GemmParams& p, Coming& v, Tile32& x, Tile32& w) {
#pragma unroll
  for (uint32_t k = 0; k < 2 && p.norm_weight != nullptr; ++k) {
    const float4 n = v.norm[k];
    v.x[k] = {v.x[k].x * n.x, v.x[k].y * n.y, v.x[k].z * n.z, v.x[k].w * n.w};
  }
  store_columns(v.x, x);
  store_columns(v.w, w);
}

__device__ __forceinline__ Outputs find_outputs(const GemmParams& p, uint32_t tile, uint32_t which,
                                                uint32_t expert) {
  uint32_t t = which;
  if (!is_gated_epilogue(p.epilogue)) {
#pragma unroll
    for (uint32_t k = 1; k < kMaxMatmulTasks; ++k) {
      if (k < p.n_tasks && tile >= p.tasks[k].first_tile) t = k;
    }
    tile -= p.tasks[t].first_tile;
  }
  return {&p.tasks[t], p.tasks[t].data + expert * p.tasks[t].expert_bytes, tile * kOut};
}

/// kAhead: W is f32 as it is (routers), and the next values come while those before are
/// multiplied.
template <bool kGated, bool kAhead>
__global__ void __launch_bounds__(kThreads) gemm_f32_kernel(const __grid_constant__ GemmParams p) {
  __shared__ __align__(16) Tile32 w[kGated ? 2 : 1];
  __shared__ __align__(16) Tile32 x;
  grid_dependents_launch();
  grid_dependency_wait();
  const uint2 at = block_place(p);
  const RowTile rows = find_row_tile(p, at.x, kF32RowTile);
  if (rows.n_rows == 0) return;
  const Outputs out[2] = {find_outputs(p, at.y, 0, rows.expert),
                          find_outputs(p, at.y, 1, rows.expert)};
  const uint32_t mine = rows.first + threadIdx.x / 4;
  const float* x_row = nullptr;
  if (threadIdx.x / 4 < rows.n_rows) {
    const int64_t from = p.row_ids != nullptr ? p.row_ids[mine] : static_cast<int64_t>(mine);
    if (from >= 0) x_row = p.x + static_cast<uint64_t>(from) * p.x_stride;
  }

  const uint32_t o4 = threadIdx.x % 16 * 4, r4 = threadIdx.x / 16 * 4;
  float acc[kGated ? 2 : 1][4][4] = {};
  Coming coming = {};
  if constexpr (kAhead) fetch(p, x_row, out[0], 0, coming);
  for (uint32_t block = 0; block * kColumns < p.n_in; ++block) {
    if constexpr (kAhead) {
      store(p, coming, x, w[0]);
    } else {
      load_weights(out[0], p.n_in, block, w[0]);
      if constexpr (kGated) load_weights(out[1], p.n_in, block, w[1]);
      load_inputs(p, x_row, block, x);
    }
    __syncthreads();
    if constexpr (kAhead) fetch(p, x_row, out[0], block + 1, coming);
#pragma unroll 8
    for (uint32_t c = 0; c < kColumns; ++c) {
      const float4 b = *reinterpret_cast<const float4*>(&x[c][r4]);
      const float xs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
      for (int m = 0; m < (kGated ? 2 : 1); ++m) {
        const float4 a = *reinterpret_cast<const float4*>(&w[m][c][o4]);
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          acc[m][r][0] = fmaf(a.x, xs[r], acc[m][r][0]);
          acc[m][r][1] = fmaf(a.y, xs[r], acc[m][r][1]);
          acc[m][r][2] = fmaf(a.z, xs[r], acc[m][r][2]);
          acc[m][r][3] = fmaf(a.w, xs[r], acc[m][r][3]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (uint32_t r = 0; r < 4; ++r) {
    if (r4 + r >= rows.n_rows) continue;
    const uint32_t row = rows.first + r4 + r;
    const float factor = p.factor[row];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k) {
      const uint32_t o = out[0].first + o4 + k;
      if (o >= out[0].task->n_out) continue;
      float* y = out[0].task->y + row * out[0].task->y_stride + o;
      const auto biased = [&](int m, float sum) {
        const float* bias = out[m].task->bias;
        return bias != nullptr ? sum + bias[uint64_t{rows.id} * out[m].task->n_out + o] : sum;
      };
      const float v = biased(0, acc[0][r][k] * factor);
      if constexpr (kGated) {
        *y = gated_value(p.epilogue, v, biased(1, acc[1][r][k] * factor));
      } else {
        *y = p.epilogue == Epilogue::kAdd      ? *y + v
             : p.epilogue == Epilogue::kSquare ? square_value(v)
                                               : v;
      }
    }
  }
}

}  // namespace

Status launch_gemm_f32(const KernelConfig& config, const GemmParams& params, uint32_t max_tiles,
                       cudaStream_t stream) {
  GemmParams p = params;
  const bool gated = is_gated_epilogue(p.epilogue);
  uint32_t tiles = 0;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    SHARPI_TRY(check_weights("gemm_f32", p.tasks[t].type, p.tasks[t].layout));
    p.tasks[t].first_tile = tiles;
    if (!gated || t == 0) tiles += (p.tasks[t].n_out + kOut - 1) / kOut;
  }
  LaunchShape shape;
  shape.grid = p.tiles != nullptr ? dim3(tiles, max_tiles)
                                  : dim3((p.n_rows + kF32RowTile - 1) / kF32RowTile, tiles);
  shape.block = dim3(kThreads);
  shape.stream = stream;
  shape.pdl = config.pdl;
  if (shape.grid.y > 65535 || p.factor == nullptr) {
    return Status::error(Code::kInternal,
                         "kernel gemm_f32 cannot take %u tiles, or lacks the factors of rows",
                         tiles);
  }
  bool plain = !gated && p.n_in % 4 == 0;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    plain = plain && p.tasks[t].layout == WeightLayout::kRows &&
            p.tasks[t].type == GgmlType::kF32 &&
            reinterpret_cast<uintptr_t>(p.tasks[t].data) % 16 == 0;
  }
  auto* kernel = gated   ? gemm_f32_kernel<true, false>
                 : plain ? gemm_f32_kernel<false, true>
                         : gemm_f32_kernel<false, false>;
  return launch_kernel("gemm_f32", shape, kernel, p);
}

}  // namespace sharpi::cuda
