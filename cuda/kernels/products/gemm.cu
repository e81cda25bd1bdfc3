// SPDX-License-Identifier: MIT
// y[r][o] = f[r] sum_i W[o][i] x[r][i] for many rows on any tensor core (m16n8k16, f32 sums).
// A block computes 128 rows of W (8 panels; 64 when gated) times up to 128 rows of x: four warps,
// each two panels and all rows of x. Weights stream through rings of units in shared memory, two
// panels per warp, and become f16 fragments in registers; x comes as image blocks of 64 columns,
// three in flight, read with ldmatrix. Grid (row tiles, weight tiles): neighbours share weights.
// Shared memory: 3 * row tile * 128 + 8 panels * 2 units. Bound: tensor cores from about 200 rows.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/gemm_tile.cuh"
#include "cuda/kernels/products/weight_types.h"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kWarps = kGemmWarps;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kPanels = kGemmPanels;
constexpr uint32_t kXStages = kGemmXStages;

__host__ __device__ constexpr uint32_t ring_bytes(GgmlType type) {
  return unit_shape(type).stages * unit_shape(type).bytes;
}

struct BlockView {
  uint32_t warp, lane;
  uint8_t* shared;   // x stages, then rings
  uint32_t x_bytes;  // of a stage
  RowTile rows;
};

/// Starts the copies of block `block` of the image and, where a unit begins, the warp's unit that
/// lies stages - 1 ahead.
template <GgmlType kType, uint32_t kRows>
__device__ __forceinline__ void issue_x(const GemmParams& p, const BlockView& v, uint32_t block) {
  if (block < p.n_image_blocks) {
    const uint8_t* from = p.image + (block * p.image_rows + v.rows.first) * kImageRowBytes;
    const uint32_t to = shared_address(v.shared) + block % kXStages * (kRows * kImageRowBytes);
    const uint32_t bytes = (v.rows.n_rows + 7) / 8 * 8 * kImageRowBytes;
    for (uint32_t i = threadIdx.x * 16; i < bytes; i += kThreads * 16)
      cp_async_16(to + i, from + i);
  }
}
template <GgmlType kType, uint32_t kRows>
__device__ __forceinline__ void issue_unit(const GemmParams& p, const BlockView& v,
                                           const WarpPanel (&panel)[2], uint32_t unit) {
  constexpr UnitShape kUnit = unit_shape(kType);
#pragma unroll
  for (uint32_t m = 0; m < 2; ++m) {
    const uint64_t at = uint64_t{unit} * kUnit.bytes, all = panel[m].task->panel_bytes;
    if (at >= all) continue;
    const uint32_t bytes = static_cast<uint32_t>(min(uint64_t{kUnit.bytes}, all - at));
    const uint32_t to = shared_address(v.shared) + kXStages * kRows * kImageRowBytes +
                        (2 * v.warp + m) * ring_bytes(kType) + unit % kUnit.stages * kUnit.bytes;
    for (uint32_t i = v.lane * 16; i < bytes; i += 512) cp_async_16(to + i, panel[m].data + at + i);
  }
}

template <GgmlType kType, uint32_t kRows>
__device__ __forceinline__ void main_loop(const GemmParams& p, const BlockView& v,
                                          const WarpPanel (&panel)[2],
                                          float (&acc)[2][kRows / 8][4]) {
  constexpr UnitShape kUnit = unit_shape(kType);
  const auto lane = static_cast<int>(v.lane);
  const uint8_t* ring =
      v.shared + kXStages * kRows * kImageRowBytes + 2 * v.warp * ring_bytes(kType);
  for (uint32_t u = 0; u + 1 < kUnit.stages; ++u) issue_unit<kType, kRows>(p, v, panel, u);
  issue_x<kType, kRows>(p, v, 0);
  cp_async_commit();
  issue_x<kType, kRows>(p, v, 1);
  cp_async_commit();
  // A lane's row of the four 8 x 8 matrices of 16 rows and 16 columns.
  const uint32_t x_row = v.lane / 16 * 8 + v.lane % 8, x_piece = v.lane / 8 % 2;
  uint32_t in_unit = 0, unit = 0;
#pragma unroll 1
  for (uint32_t block = 0; block < p.n_image_blocks; ++block) {
    cp_async_wait<1>();
    __syncthreads();  // the block's copies have landed, and the last block's are used up
    if (in_unit == 0) issue_unit<kType, kRows>(p, v, panel, unit + kUnit.stages - 1);
    issue_x<kType, kRows>(p, v, block + 2);
    cp_async_commit();

    const uint8_t* at = ring + unit % kUnit.stages * kUnit.bytes;
    const uint32_t x = shared_address(v.shared) + block % kXStages * (kRows * kImageRowBytes) +
                       x_row * kImageRowBytes;
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
      const bool past_end = block * kImageColumns + half * 32 >= p.n_in;
      uint32_t w[2][2][4];
#pragma unroll
      for (uint32_t m = 0; m < 2; ++m) {
        load_block_or_zero<kType>(at + m * ring_bytes(kType), 2 * in_unit + half, past_end, lane,
                                  w[m]);
      }
#pragma unroll
      for (uint32_t k = 0; k < 2; ++k) {
        const uint32_t piece = x + ((4 * half + 2 * k + x_piece) ^ (x_row % 8)) * 16;
#pragma unroll
        for (uint32_t n = 0; n < kRows / 16; ++n) {
          uint32_t b[4];
          ldmatrix_x4(b, piece + n * 16 * kImageRowBytes);
#pragma unroll
          for (uint32_t m = 0; m < 2; ++m) {
            mma_f16(acc[m][2 * n], w[m][k], b[0], b[1], acc[m][2 * n]);
            mma_f16(acc[m][2 * n + 1], w[m][k], b[2], b[3], acc[m][2 * n + 1]);
          }
        }
      }
    }
    if (++in_unit == kUnit.blocks) {
      in_unit = 0;
      ++unit;
    }
  }
  cp_async_wait<0>();
}

/// Panel `which` (0 or 1) of a warp: two neighbours, or gate and up.
__device__ __forceinline__ WarpPanel find_warp_panel(const GemmParams& p, uint32_t tile,
                                                     uint32_t warp, uint32_t which,
                                                     uint32_t expert) {
  if (is_gated_epilogue(p.epilogue))
    return make_warp_panel(&p.tasks[which], tile * kWarps + warp, expert);
  uint32_t t = 0;
#pragma unroll
  for (uint32_t k = 1; k < kMaxMatmulTasks; ++k) {
    if (k < p.n_tasks && tile >= p.tasks[k].first_tile) t = k;
  }
  tile -= p.tasks[t].first_tile;
  return make_warp_panel(&p.tasks[t], (tile * kWarps + warp) * 2 + which, expert);
}

template <uint32_t kRows>
__global__ void __launch_bounds__(kThreads, 2) gemm_kernel(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(128) uint8_t shared[];
  grid_dependents_launch();
  grid_dependency_wait();
  BlockView v;
  v.warp = threadIdx.x / 32;
  v.lane = threadIdx.x % 32;
  v.shared = shared;
  const uint2 at = block_place(p);
  v.rows = find_row_tile(p, at.x, kRows);
  if (v.rows.n_rows == 0) return;
  const WarpPanel panel[2] = {find_warp_panel(p, at.y, v.warp, 0, v.rows.expert),
                              find_warp_panel(p, at.y, v.warp, 1, v.rows.expert)};
  float acc[2][kRows / 8][4] = {};
  with_type_of<GemmTypes>(panel[0].task->type,
                          [&]<GgmlType kType>() { main_loop<kType, kRows>(p, v, panel, acc); });
  __syncthreads();  // the stages of x are used up
  auto* factor = reinterpret_cast<float*>(shared);
  if (threadIdx.x < v.rows.n_rows) factor[threadIdx.x] = p.factor[v.rows.first + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (uint32_t m = 0; m < 2; ++m) {
    scale_rows(factor, acc[m], v.lane);
    add_bias(panel[m], v.rows.id, acc[m], v.lane);
  }
  if (is_gated_epilogue(p.epilogue)) {
#pragma unroll
    for (uint32_t n = 0; n < kRows / 8; ++n) {
#pragma unroll
      for (uint32_t e = 0; e < 4; ++e)
        acc[0][n][e] = gated_value(p.epilogue, acc[0][n][e], acc[1][n][e]);
    }
  }
  if (p.epilogue == Epilogue::kSquare) {
    square_sums(acc[0]);
    square_sums(acc[1]);
  }
  store_panel(p, panel[0], v.rows, acc[0], 0, kRows / 8, v.lane);
  if (!is_gated_epilogue(p.epilogue))
    store_panel(p, panel[1], v.rows, acc[1], 0, kRows / 8, v.lane);
}

using GemmKernel = void (*)(GemmParams);
GemmKernel gemm_instance(uint32_t row_tile) {
  return row_tile == 32 ? gemm_kernel<32> : row_tile == 64 ? gemm_kernel<64> : gemm_kernel<128>;
}

/// deterministic: one kernel on every device, and equal bits with every row tile.
bool use_sm90(const KernelConfig& config) {
  return have_gemm_sm90(config) && !config.deterministic && config.gemm_path != GemmPath::kMma;
}

/// The row tile whose waves of blocks take least. What a tile costs besides its rows is unpacking
/// its weights and filling its pipeline.
uint32_t choose_row_tile(const KernelConfig& config, const GemmParams& p) {
  if (!use_sm90(config)) {
    uint32_t rows = gemm_tile_rows(config.device, p.n_rows, p.tasks[0].type);
    for (uint32_t t = 1; t < p.n_tasks; ++t)
      rows = std::min(rows, gemm_tile_rows(config.device, p.n_rows, p.tasks[t].type));
    return rows;
  }
  constexpr uint32_t kTileCost = 32;
  const uint32_t per_tile = is_gated_epilogue(p.epilogue) ? 64 : 128;
  uint32_t tiles = 0;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    if (!is_gated_epilogue(p.epilogue) || t == 0)
      tiles += (p.tasks[t].n_out + per_tile - 1) / per_tile;
  }
  const auto n_sm = static_cast<uint32_t>(std::max(config.device.n_sm, 1));
  uint32_t best = 0, least = ~0u;
  for (const uint32_t rows : {256u, 192u, 160u, 128u, 96u, 64u, 32u}) {
    const uint32_t waves = (tiles * ((p.n_rows + rows - 1) / rows) + n_sm - 1) / n_sm;
    const uint32_t cost = waves * (rows + kTileCost);
    if (cost >= least) continue;
    best = rows;
    least = cost;
  }
  return best;
}

}  // namespace

uint32_t gemm_row_tile(const KernelConfig& config, uint64_t rows_per_expert) {
  if (use_sm90(config)) return kWarpgroupRowTile;
  return gemm_tile_rows(config.device, rows_per_expert, kWidestGemmType);
}

Status launch_gemm(const KernelConfig& config, const GemmParams& params, uint32_t row_tile,
                   uint32_t max_tiles, cudaStream_t stream) {
  GemmParams p = params;
  const bool gated = is_gated_epilogue(p.epilogue);
  if (gated && p.tasks[0].type != p.tasks[1].type) {
    return Status::error(Code::kInternal, "kernel gemm cannot take gate and up of different types");
  }
  if (row_tile == 0) row_tile = choose_row_tile(config, p);
  uint32_t tiles = 0, bytes = 0;
  const uint32_t rows_per_tile = kPanels * kPanelRows / (gated ? 2 : 1);
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    if (p.tasks[t].layout != WeightLayout::kTiles) {
      return Status::error(Code::kInternal,
                           "kernel gemm cannot take task %u, whose weights are not in tiles", t);
    }
    if (!GemmTypes::has(p.tasks[t].type)) {
      return Status::error(Code::kUnsupported, "kernel gemm: no tiles of type %s",
                           ggml_traits(p.tasks[t].type).name);
    }
    p.tasks[t].first_tile = tiles;
    if (!gated || t == 0) tiles += (p.tasks[t].n_out + rows_per_tile - 1) / rows_per_tile;
    bytes = std::max(bytes, gemm_shared_bytes(row_tile, p.tasks[t].type));
  }
  if (use_sm90(config)) return launch_gemm_sm90(config, params, row_tile, max_tiles, stream);
  LaunchShape shape;
  shape.grid = p.tiles != nullptr ? dim3(tiles, max_tiles)
                                  : dim3((p.n_rows + row_tile - 1) / row_tile, tiles);
  shape.block = dim3(kThreads);
  shape.shared_bytes = bytes;
  shape.stream = stream;
  shape.pdl = config.pdl;
  if (shape.grid.y > 65535 ||
      shape.shared_bytes > static_cast<size_t>(config.device.shared_per_block)) {
    return Status::error(Code::kInternal,
                         "kernel gemm cannot take %u tiles with %zu bytes of shared memory", tiles,
                         shape.shared_bytes);
  }
  return launch_kernel("gemm", shape, gemm_instance(row_tile), p);
}

Status prepare_gemm(const KernelConfig& config) {
  for (const uint32_t rows : {32u, 64u, 128u}) {
    SHARPI_TRY(kernel_status(
        cudaFuncSetAttribute(gemm_instance(rows), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             config.device.shared_per_block),
        "gemm"));
  }
  return have_gemm_sm90(config) ? prepare_gemm_sm90(config) : Status::ok();
}

}  // namespace sharpi::cuda
