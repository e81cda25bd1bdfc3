// SPDX-License-Identifier: MIT
// The products of gemm.cu on Hopper's warpgroup tensor cores; built for sm_90a only.
// A block computes 256 rows of W (16 panels; 128 when gated) times 64 or 128 rows of x: two
// warpgroups, each warp two panels, which it streams through a ring of its own in shared memory and
// turns into f16 fragments in registers while earlier products are in flight; a third warpgroup
// copies the blocks of x. Grid as in gemm.cu. Shared memory: 6 * row tile * 128 + 16 panels * 2
// units. Bound: tensor cores from about 200 rows.
#include <algorithm>

#include "cuda/kernels/gemm.h"
#include "cuda/kernels/gemm_tile.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/wgmma.cuh"

namespace sharpi::cuda {

#ifdef SHARPI_HAVE_SM90A
namespace {

constexpr uint32_t kWarps = 8;                    // that compute
constexpr uint32_t kThreads = (kWarps + 4) * 32;  // registers are handed over by warpgroups
constexpr uint32_t kPanels = 2 * kWarps;
constexpr uint32_t kXStages = 6;

__host__ __device__ constexpr uint32_t ring_bytes(GgmlType type) {
  return unit_shape(type).stages * unit_shape(type).bytes;
}

/// Shared memory: x stages (aligned to 1024), rings, barriers: x full, x empty, then three of each
/// warp's units.
struct BlockView {
  uint32_t warp, lane;
  uint32_t x, rings, barriers;  // shared addresses
  const uint8_t* ring;          // the warp's
  __device__ uint32_t x_full(uint32_t s) const { return barriers + s * 8; }
  __device__ uint32_t x_empty(uint32_t s) const { return barriers + (kXStages + s) * 8; }
  __device__ uint32_t unit_full(uint32_t s) const {
    return barriers + (2 * kXStages + warp * 3 + s) * 8;
  }
};
constexpr uint32_t kBarrierBytes = (2 * kXStages + 3 * kWarps) * 8;

/// One thread of the third warpgroup: blocks of x, as far ahead as there are stages.
template <uint32_t kRows>
__device__ __forceinline__ void copy_x(const GemmParams& p, const BlockView& v,
                                       const RowTile& rows) {
  if (v.lane != 0) return;
  const uint32_t bytes = (rows.n_rows + 7) / 8 * 8 * kStepRowBytes;
  const uint8_t* from = p.image + uint64_t{rows.first} * kStepRowBytes;
  uint32_t stage = 0, parity = 1;  // all stages start empty
  for (uint32_t step = 0; step < p.n_steps; ++step) {
    mbarrier_wait(v.x_empty(stage), parity);
    mbarrier_expect(v.x_full(stage), bytes);
    bulk_copy(v.x + stage * kRows * kStepRowBytes, from, bytes, v.x_full(stage));
    from += p.image_rows * kStepRowBytes;
    if (++stage == kXStages) {
      stage = 0;
      parity ^= 1u;
    }
  }
}

/// A warp's two panels, unit by unit.
template <GgmlType kType>
struct PanelStream {
  static constexpr UnitShape kUnit = unit_shape(kType);
  const uint8_t* data[2];
  uint32_t panel_bytes;
  uint32_t unit = 0, block = 0, stage = 0, parity = 0;

  __device__ __forceinline__ void issue(const BlockView& v, uint32_t u, uint32_t to) const {
    const uint32_t at = u * kUnit.bytes;
    if (v.lane != 0 || at >= panel_bytes) return;
    const uint32_t bytes = min(kUnit.bytes, panel_bytes - at);
    const uint32_t ring = v.rings + 2 * v.warp * ring_bytes(kType) + to * kUnit.bytes;
    mbarrier_expect(v.unit_full(to), 2 * bytes);
    bulk_copy(ring, data[0] + at, bytes, v.unit_full(to));
    bulk_copy(ring + ring_bytes(kType), data[1] + at, bytes, v.unit_full(to));
  }
  /// The next 32 columns of both panels.
  __device__ __forceinline__ void next(const BlockView& v, bool past_end, uint32_t (&w)[2][2][4]) {
    if (block == 0) mbarrier_wait(v.unit_full(stage), parity);
    const uint8_t* at = v.ring + stage * kUnit.bytes;
#pragma unroll
    for (uint32_t m = 0; m < 2; ++m) {
      load_block_or_zero<kType>(at + m * ring_bytes(kType), block, past_end,
                                static_cast<int>(v.lane), w[m]);
    }
    if (++block != 2 * kUnit.steps) return;
    block = 0;
    __syncwarp();
    issue(v, unit + kUnit.stages, stage);
    ++unit;
    if (++stage == kUnit.stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
};

template <GgmlType kType, uint32_t kRows>
__device__ __forceinline__ void main_loop(const GemmParams& p, BlockView& v,
                                          const WarpPanel (&panel)[2],
                                          float (&acc)[2][kRows / 8][4], uint8_t* rings) {
  v.ring = rings + 2 * v.warp * ring_bytes(kType);
  PanelStream<kType> weights;
  weights.data[0] = panel[0].data;
  weights.data[1] = panel[1].data;
  weights.panel_bytes = static_cast<uint32_t>(panel[0].task->panel_bytes);
  for (uint32_t u = 0; u < unit_shape(kType).stages; ++u) weights.issue(v, u, u);

  uint32_t w0[2][2][4], w1[2][2][4];
  weights.next(v, false, w0);
  uint32_t stage = 0, parity = 0, last = 0;
#pragma unroll 1
  for (uint32_t step = 0; step < p.n_steps; ++step) {
    mbarrier_wait(v.x_full(stage), parity);
    const uint64_t x = wgmma_operand(v.x + stage * kRows * kStepRowBytes);
    wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
#pragma unroll
      for (uint32_t m = 0; m < 2; ++m) wgmma_f16<kRows>(acc[m], w0[m][k], x + 2 * k);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the second half of the last step: its registers and its x are free
    if (step != 0 && v.lane == 0) mbarrier_arrive(v.x_empty(last));
    weights.next(v, step * kStepColumns + 32 >= p.n_in, w1);
    wgmma_fence();
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
#pragma unroll
      for (uint32_t m = 0; m < 2; ++m) wgmma_f16<kRows>(acc[m], w1[m][k], x + 4 + 2 * k);
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step + 1 < p.n_steps) weights.next(v, false, w0);
    last = stage;
    if (++stage == kXStages) {
      stage = 0;
      parity ^= 1u;
    }
  }
  wgmma_wait<0>();
}

template <uint32_t kRows>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  BlockView v;
  v.warp = threadIdx.x / 32;
  v.lane = threadIdx.x % 32;
  const uint32_t x_bytes = kXStages * kRows * kStepRowBytes;
  v.barriers = shared_address(shared) + x_bytes + p.ring_bytes;
  v.x = shared_address(shared);
  v.rings = v.x + x_bytes;
  if (threadIdx.x < kXStages) {
    mbarrier_init(v.x_full(threadIdx.x), 1);
    mbarrier_init(v.x_empty(threadIdx.x), kWarps);
  }
  if (v.warp < kWarps && v.lane < 3) mbarrier_init(v.unit_full(v.lane), 1);
  mbarrier_init_fence();
  grid_dependents_launch();
  grid_dependency_wait();
  __syncthreads();
  const uint2 at = block_place(p);
  const RowTile rows = find_row_tile(p, at.x, kRows);
  if (rows.n_rows == 0) return;
  if (v.warp >= kWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (v.warp == kWarps) copy_x<kRows>(p, v, rows);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const WarpPanel panel[2] = {find_warp_panel(p, at.y, kWarps, v.warp, 0, rows.expert),
                              find_warp_panel(p, at.y, kWarps, v.warp, 1, rows.expert)};
  float acc[2][kRows / 8][4] = {};
  uint8_t* rings = shared + x_bytes;
  switch (panel[0].task->type) {
    case GgmlType::kQ8_0:
      main_loop<GgmlType::kQ8_0, kRows>(p, v, panel, acc, rings);
      break;
    case GgmlType::kQ4_0:
      main_loop<GgmlType::kQ4_0, kRows>(p, v, panel, acc, rings);
      break;
    case GgmlType::kQ4_1:
      main_loop<GgmlType::kQ4_1, kRows>(p, v, panel, acc, rings);
      break;
    case GgmlType::kQ5_0:
      main_loop<GgmlType::kQ5_0, kRows>(p, v, panel, acc, rings);
      break;
    case GgmlType::kQ5_1:
      main_loop<GgmlType::kQ5_1, kRows>(p, v, panel, acc, rings);
      break;
    case GgmlType::kQ4_K:
      main_loop<GgmlType::kQ4_K, kRows>(p, v, panel, acc, rings);
      break;
    case GgmlType::kQ5_K:
      main_loop<GgmlType::kQ5_K, kRows>(p, v, panel, acc, rings);
      break;
    case GgmlType::kQ6_K:
      main_loop<GgmlType::kQ6_K, kRows>(p, v, panel, acc, rings);
      break;
    default:
      main_loop<GgmlType::kF16, kRows>(p, v, panel, acc, rings);
      break;
  }
  const uint32_t end = rows.first + rows.n_rows;
#pragma unroll
  for (uint32_t n = 0; n < kRows / 8; ++n)
    store_eight(p, panel, rows.first + 8 * n, end, acc[0][n], acc[1][n], v.lane);
}

}  // namespace

bool have_gemm_sm90(const MatmulConfig& config) {
  return config.compute_capability == 90;
}

Status launch_gemm_sm90(const MatmulConfig& config, const GemmParams& params, uint32_t row_tile,
                        uint32_t max_tiles, cudaStream_t stream) {
  GemmParams p = params;
  const bool gated = is_gated_epilogue(p.epilogue);
  const uint32_t rows_per_tile = kPanels * kPanelRows / (gated ? 2 : 1);
  uint32_t tiles = 0, ring = 0;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    p.tasks[t].first_tile = tiles;
    if (!gated || t == 0) tiles += (p.tasks[t].n_out + rows_per_tile - 1) / rows_per_tile;
    ring = std::max(ring, ring_bytes(p.tasks[t].type));
  }
  p.ring_bytes = kPanels * ring;
  LaunchShape shape;
  shape.grid = p.tiles != nullptr ? dim3(tiles, max_tiles)
                                  : dim3((p.n_rows + row_tile - 1) / row_tile, tiles);
  shape.block = dim3(kThreads);
  shape.shared_bytes = kXStages * row_tile * kStepRowBytes + p.ring_bytes + kBarrierBytes;
  shape.stream = stream;
  shape.pdl = config.pdl;
  if (shape.grid.y > 65535 || shape.shared_bytes > static_cast<size_t>(config.max_shared_bytes)) {
    return Status::error(Code::kInternal, "gemm_sm90: %u tiles, %zu bytes of shared memory", tiles,
                         shape.shared_bytes);
  }
  return launch_kernel("gemm_sm90", shape,
                       row_tile == 64 ? gemm_sm90_kernel<64> : gemm_sm90_kernel<128>, p);
}

Status prepare_gemm_sm90(const MatmulConfig& config) {
  for (const auto kernel : {gemm_sm90_kernel<64>, gemm_sm90_kernel<128>}) {
    SHARPI_TRY(
        kernel_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           config.max_shared_bytes),
                      "gemm_sm90"));
  }
  return Status::ok();
}

#else  // built without that architecture: gemm.cu runs everywhere

bool have_gemm_sm90(const MatmulConfig&) {
  return false;
}
Status launch_gemm_sm90(const MatmulConfig&, const GemmParams&, uint32_t, uint32_t, cudaStream_t) {
  return Status::error(Code::kInternal, "gemm_sm90: not in this build");
}
Status prepare_gemm_sm90(const MatmulConfig&) {
  return Status::ok();
}

#endif

}  // namespace sharpi::cuda
