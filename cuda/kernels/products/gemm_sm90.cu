// SPDX-License-Identifier: MIT
// The products of gemm.cu on Hopper's warpgroup tensor cores; built for sm_90a only.
// A block computes 128 rows of W (8 panels; 64 of gate and of up when gated) times up to 256 rows
// of x: two warpgroups, each warp one panel, which it streams through a ring of its own in shared
// memory and turns into f16 fragments in registers while earlier products are in flight; one thread
// of a third warpgroup copies the blocks of x. Every weight is unpacked once per row tile, so high
// tiles pay; a product covers the tile's rows rounded up to 32 (64 from 192 on).
// Grid as in gemm.cu. Shared memory: x_stages * row tile * 128 + 8 panels * 2 units.
// Bound: tensor cores from about 200 rows.
#include <algorithm>

#include "cuda/kernels/device_query.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/gemm.h"
#include "cuda/kernels/products/gemm_tile.cuh"
#include "cuda/kernels/products/weight_types.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/wgmma.cuh"

namespace sharpi::cuda {

#ifdef SHARPI_HAVE_SM90A
namespace {

constexpr uint32_t kWarps = kWarpgroupWarps, kThreads = kWarpgroupGemmThreads;
constexpr uint32_t kMaxXStages = kMostXStages;
constexpr uint32_t kGroups = kWarpgroupRowTile / 8;

/// Shared memory: x stages (aligned to 1024), rings, factors, barriers: x full, x empty, then three
/// of each warp's units.
struct BlockView {
  uint32_t warp, lane;
  uint32_t x, x_stage, n_stages;  // shared address, bytes of a stage
  uint32_t barriers;
  uint8_t* rings;
  __device__ uint32_t x_full(uint32_t s) const { return barriers + s * 8; }
  __device__ uint32_t x_empty(uint32_t s) const { return barriers + (kMaxXStages + s) * 8; }
  __device__ uint32_t unit_full(uint32_t s) const {
    return barriers + (2 * kMaxXStages + warp * 3 + s) * 8;
  }
};

/// One thread of the third warpgroup: blocks of x, as far ahead as there are stages.
__device__ __forceinline__ void copy_x(const GemmParams& p, const BlockView& v,
                                       const RowTile& rows) {
  const uint32_t bytes = (rows.n_rows + 7) / 8 * 8 * kImageRowBytes;
  const uint8_t* from = p.image + uint64_t{rows.first} * kImageRowBytes;
  uint32_t stage = 0, parity = 1;  // all stages start empty
  for (uint32_t block = 0; block < p.n_image_blocks; ++block) {
    mbarrier_wait(v.x_empty(stage), parity);
    mbarrier_expect(v.x_full(stage), bytes);
    bulk_copy(v.x + stage * v.x_stage, from, bytes, v.x_full(stage));
    from += p.image_rows * kImageRowBytes;
    if (++stage == v.n_stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
}

struct NoMeta {};
template <GgmlType kType>
struct MetaOf {
  using Type = typename Tile<kType>::Meta;
};
template <>
struct MetaOf<GgmlType::kF16> {
  using Type = NoMeta;
};

/// A warp's panel, unit by unit.
template <GgmlType kType>
struct PanelStream {
  static constexpr UnitShape kUnit = unit_shape(kType);
  const uint8_t* data;
  const uint8_t* ring;
  uint32_t panel_bytes;
  uint32_t unit = 0, stage = 0, parity = 0;
  typename MetaOf<kType>::Type meta;

  __device__ __forceinline__ void issue(const BlockView& v, uint32_t u, uint32_t to) const {
    const uint32_t at = u * kUnit.bytes;
    if (v.lane != 0 || at >= panel_bytes) return;
    const uint32_t bytes = min(kUnit.bytes, panel_bytes - at);
    mbarrier_expect(v.unit_full(to), bytes);
    bulk_copy(shared_address(ring) + to * kUnit.bytes, data + at, bytes, v.unit_full(to));
  }
  /// Block b of the unit, b known to the compiler; 0 waits for the unit.
  __device__ __forceinline__ void load(const BlockView& v, uint32_t b, bool past_end,
                                       uint32_t (&w)[2][4]) {
    const uint8_t* at = ring + stage * kUnit.bytes;
    const auto lane = static_cast<int>(v.lane);
    if (b == 0) mbarrier_wait(v.unit_full(stage), parity);
    if constexpr (kType == GgmlType::kF16) {
      unpack_block<kType>(at, {}, b, lane, w);
    } else {
      using T = Tile<kType>;
      if (b == 0) {
        meta = T::meta(at, lane);
        if constexpr (T::kSuper) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            meta.d[h] *= kWeightUnit;
            meta.dmin[h] *= kWeightUnit;
          }
        }
      }
      unpack_block<kType>(at, meta_scales<kType>(at, meta, static_cast<int>(b), lane), b, lane, w);
      if (!T::kSuper && past_end) {
#pragma unroll
        for (int k = 0; k < 2; ++k) w[k][0] = w[k][1] = w[k][2] = w[k][3] = 0;
      }
    }
  }
  /// The unit is used up: its stage takes a later one.
  __device__ __forceinline__ void advance(const BlockView& v) {
    __syncwarp();
    issue(v, unit + kUnit.stages, stage);
    ++unit;
    if (++stage == kUnit.stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
};

/// Registers of the next 32 columns are made while the products of the last ones run.
template <GgmlType kType, uint32_t kN>
__device__ __forceinline__ void main_loop(const GemmParams& p, const BlockView& v,
                                          PanelStream<kType>& weights, float (&acc)[kGroups][4]) {
  constexpr uint32_t kBlocks = unit_shape(kType).blocks;
  uint32_t w0[2][4], w1[2][4];
  weights.load(v, 0, false, w0);
  uint32_t stage = 0, parity = 0, last = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < p.n_image_blocks; first += kBlocks) {
#pragma unroll
    for (uint32_t s = 0; s < kBlocks; ++s) {
      const uint32_t block = first + s;
      if (block >= p.n_image_blocks) break;
      mbarrier_wait(v.x_full(stage), parity);
      const uint64_t x = wgmma_operand(v.x + stage * v.x_stage);
      wgmma_fence();
      wgmma_f16<kN>(acc, w0[0], x);
      wgmma_f16<kN>(acc, w0[1], x + 2);
      wgmma_commit();
      wgmma_wait<1>();  // the second half of the last block: its registers and its x are free
      if (block != 0 && v.lane == 0) mbarrier_arrive(v.x_empty(last));
      weights.load(v, 2 * s + 1, block * kImageColumns + 32 >= p.n_in, w1);
      if (s + 1 == kBlocks) weights.advance(v);
      wgmma_fence();
      wgmma_f16<kN>(acc, w1[0], x + 4);
      wgmma_f16<kN>(acc, w1[1], x + 6);
      wgmma_commit();
      wgmma_wait<1>();
      if (block + 1 < p.n_image_blocks) weights.load(v, (2 * s + 2) % (2 * kBlocks), false, w0);
      last = stage;
      if (++stage == v.n_stages) {
        stage = 0;
        parity ^= 1u;
      }
    }
  }
  wgmma_wait<0>();
}

template <GgmlType kType>
__device__ __forceinline__ void run_panel(const GemmParams& p, const BlockView& v,
                                          const WarpPanel& panel, uint32_t n_rows,
                                          float (&acc)[kGroups][4]) {
  PanelStream<kType> weights;
  weights.data = panel.data;
  weights.ring = v.rings + v.warp * panel_ring_bytes(kType);
  weights.panel_bytes = static_cast<uint32_t>(panel.task->panel_bytes);
  for (uint32_t u = 0; u < unit_shape(kType).stages; ++u) weights.issue(v, u, u);
  if (n_rows > 192) {
    main_loop<kType, 256>(p, v, weights, acc);
  } else if (n_rows > 160) {
    main_loop<kType, 192>(p, v, weights, acc);
  } else if (n_rows > 128) {
    main_loop<kType, 160>(p, v, weights, acc);
  } else if (n_rows > 96) {
    main_loop<kType, 128>(p, v, weights, acc);
  } else if (n_rows > 64) {
    main_loop<kType, 96>(p, v, weights, acc);
  } else if (n_rows > 32) {
    main_loop<kType, 64>(p, v, weights, acc);
  } else {
    main_loop<kType, 32>(p, v, weights, acc);
  }
}

__device__ __forceinline__ void run_any_panel(const GemmParams& p, const BlockView& v,
                                              const WarpPanel& panel, uint32_t n_rows,
                                              float (&acc)[kGroups][4]) {
  // Not by with_type_of(): through its function the compiler makes this kernel three times as
  // long.
  static_assert(kBranchIsWhole<GemmTypes, GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1,
                               GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kMXFP4, GgmlType::kQ4_K,
                               GgmlType::kQ5_K, GgmlType::kQ6_K, GgmlType::kF16>);
  switch (panel.task->type) {
    case GgmlType::kQ8_0:
      return run_panel<GgmlType::kQ8_0>(p, v, panel, n_rows, acc);
    case GgmlType::kQ4_0:
      return run_panel<GgmlType::kQ4_0>(p, v, panel, n_rows, acc);
    case GgmlType::kQ4_1:
      return run_panel<GgmlType::kQ4_1>(p, v, panel, n_rows, acc);
    case GgmlType::kQ5_0:
      return run_panel<GgmlType::kQ5_0>(p, v, panel, n_rows, acc);
    case GgmlType::kQ5_1:
      return run_panel<GgmlType::kQ5_1>(p, v, panel, n_rows, acc);
    case GgmlType::kMXFP4:
      return run_panel<GgmlType::kMXFP4>(p, v, panel, n_rows, acc);
    case GgmlType::kQ4_K:
      return run_panel<GgmlType::kQ4_K>(p, v, panel, n_rows, acc);
    case GgmlType::kQ5_K:
      return run_panel<GgmlType::kQ5_K>(p, v, panel, n_rows, acc);
    case GgmlType::kQ6_K:
      return run_panel<GgmlType::kQ6_K>(p, v, panel, n_rows, acc);
    default:  // the last of the list; launch_gemm refuses others
      return run_panel<GgmlType::kF16>(p, v, panel, n_rows, acc);
  }
}

/// The two computing warpgroups.
__device__ __forceinline__ void consumer_barrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}

/// Gate sums are in the first warpgroup, up sums in the second: each hands half of its rows over,
/// through what were the stages of x, and finishes the other half.
__device__ __forceinline__ void exchange(const GemmParams& p, uint8_t* shared, bool second,
                                         float (&acc)[kGroups][4]) {
  auto* mine = reinterpret_cast<float4*>(shared) + threadIdx.x;
  const auto* other =
      reinterpret_cast<const float4*>(shared) + (threadIdx.x + kWarps * 16) % (kWarps * 32);
  constexpr uint32_t kHalf = kGroups / 2, kPitch = kWarps * 32;
#pragma unroll
  for (uint32_t n = 0; n < kHalf; ++n) {
    float a[4];
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) a[e] = second ? acc[n][e] : acc[n + kHalf][e];
    mine[n * kPitch] = {a[0], a[1], a[2], a[3]};
  }
  consumer_barrier();
#pragma unroll
  for (uint32_t n = 0; n < kHalf; ++n) {
    const float4 b = other[n * kPitch];
    const float theirs[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
    for (uint32_t e = 0; e < 4; ++e) {
      if (second) {
        acc[n + kHalf][e] = gated_value(p.epilogue, theirs[e], acc[n + kHalf][e]);
      } else {
        acc[n][e] = gated_value(p.epilogue, acc[n][e], theirs[e]);
      }
    }
  }
}

__device__ __forceinline__ WarpPanel find_panel_sm90(const GemmParams& p, uint32_t tile,
                                                     uint32_t warp, uint32_t expert) {
  uint32_t t = 0, panel = 0;
  if (is_gated_epilogue(p.epilogue)) {
    t = warp / 4;
    panel = tile * 4 + warp % 4;
  } else {
#pragma unroll
    for (uint32_t k = 1; k < kMaxMatmulTasks; ++k) {
      if (k < p.n_tasks && tile >= p.tasks[k].first_tile) t = k;
    }
    panel = (tile - p.tasks[t].first_tile) * kWarps + warp;
  }
  return make_warp_panel(&p.tasks[t], panel, expert);
}

__global__ void __launch_bounds__(kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ GemmParams p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  BlockView v;
  v.warp = threadIdx.x / 32;
  v.lane = threadIdx.x % 32;
  v.x = shared_address(shared);
  v.x_stage = p.row_tile * kImageRowBytes;
  v.n_stages = p.x_stages;
  v.rings = shared + v.n_stages * v.x_stage;
  auto* factor = reinterpret_cast<float*>(v.rings + p.ring_bytes);
  v.barriers = shared_address(factor) + kGemmFactorBytes;
  if (threadIdx.x < kMaxXStages) {
    mbarrier_init(v.x_full(threadIdx.x), 1);
    mbarrier_init(v.x_empty(threadIdx.x), kWarps);
  }
  if (v.warp < kWarps && v.lane < 3) mbarrier_init(v.unit_full(v.lane), 1);
  mbarrier_init_fence();
  grid_dependents_launch();
  grid_dependency_wait();
  const uint2 at = block_place(p);
  const RowTile rows = find_row_tile(p, at.x, p.row_tile);
  if (threadIdx.x < kWarpgroupRowTile)
    factor[threadIdx.x] = threadIdx.x < rows.n_rows ? p.factor[rows.first + threadIdx.x] : 0.0f;
  __syncthreads();
  if (rows.n_rows == 0) return;
  if (v.warp >= kWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == kWarps * 32) copy_x(p, v, rows);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");

  const WarpPanel panel = find_panel_sm90(p, at.y, v.warp, rows.expert);
  float acc[kGroups][4] = {};
  run_any_panel(p, v, panel, rows.n_rows, acc);
  scale_rows(factor, acc, v.lane);
  add_bias(panel, rows.id, acc, v.lane);
  if (is_gated_epilogue(p.epilogue)) {
    const bool second = v.warp >= kWarps / 2;
    consumer_barrier();  // the stages of x are used up
    exchange(p, shared, second, acc);
    const WarpPanel out = make_warp_panel(&p.tasks[0], panel.panel, rows.expert);
    store_panel(p, out, rows, acc, second ? kGroups / 2 : 0, second ? kGroups : kGroups / 2,
                v.lane);
  } else {
    if (p.epilogue == Epilogue::kSquare) square_sums(acc);
    store_panel(p, panel, rows, acc, 0, kGroups, v.lane);
  }
}

}  // namespace

bool warpgroups_built() {
  return true;
}
bool have_gemm_sm90(const KernelConfig& config) {
  return warpgroup_gemm_fits(config.device);
}

Status launch_gemm_sm90(const KernelConfig& config, const GemmParams& params, uint32_t row_tile,
                        uint32_t max_tiles, cudaStream_t stream) {
  GemmParams p = params;
  const bool gated = is_gated_epilogue(p.epilogue);
  const uint32_t rows_per_tile = kWarps * kPanelRows / (gated ? 2 : 1);
  uint32_t tiles = 0, ring = 0;
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    p.tasks[t].first_tile = tiles;
    if (!gated || t == 0) tiles += (p.tasks[t].n_out + rows_per_tile - 1) / rows_per_tile;
    ring = std::max(ring, panel_ring_bytes(p.tasks[t].type));
  }
  p.row_tile = row_tile;
  const WarpgroupGemm g = warpgroup_gemm(config.device, row_tile, ring, gated);
  p.ring_bytes = g.ring_bytes;
  p.x_stages = g.x_stages;
  LaunchShape shape;
  shape.grid = p.tiles != nullptr ? dim3(tiles, max_tiles)
                                  : dim3((p.n_rows + row_tile - 1) / row_tile, tiles);
  shape.block = dim3(kThreads);
  shape.shared_bytes = g.shared_bytes;
  shape.stream = stream;
  shape.pdl = config.pdl;
  if (shape.grid.y > 65535 || p.x_stages < 2 || row_tile > kWarpgroupRowTile) {
    return Status::error(Code::kInternal,
                         "kernel gemm_sm90 cannot take %u tiles of %u rows with %u stages", tiles,
                         row_tile, p.x_stages);
  }
  return launch_kernel("gemm_sm90", shape, gemm_sm90_kernel, p);
}

Status prepare_gemm_sm90(const KernelConfig& config) {
  return kernel_status(
      cudaFuncSetAttribute(gemm_sm90_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           config.device.shared_per_block),
      "gemm_sm90");
}

#else  // built without that architecture: gemm.cu runs everywhere

bool warpgroups_built() {
  return false;
}
bool have_gemm_sm90(const KernelConfig&) {
  return false;
}
Status launch_gemm_sm90(const KernelConfig&, const GemmParams&, uint32_t, uint32_t, cudaStream_t) {
  return Status::error(Code::kInternal, "kernel gemm_sm90 is not in this build");
}
Status prepare_gemm_sm90(const KernelConfig&) {
  return Status::ok();
}

#endif

}  // namespace sharpi::cuda
