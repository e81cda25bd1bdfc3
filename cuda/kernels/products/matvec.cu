// SPDX-License-Identifier: MIT
// y[r][o] = sum_i W[o][i] x[r][i] for 2 to 16 rows, W in tiles, x rounded to f16 (one row:
// matvec_row.cu). A block owns a contiguous range of panels (16 rows); its warps share the panels'
// units (16 x 256) evenly, each streaming them through a ring of its own in shared memory that runs
// ahead of the arithmetic, and from before the grid dependency resolves. The input is staged once
// (stage.cuh); rows that are too long for shared memory come in parts of their columns
// (matvec_parts.cuh), whose sums are added up. Integer codes times f16 on tensor cores are exact;
// scales and minima are applied in f32, the RMS norm's factor to the sums, so that staging needs no
// sum over the row. Bound: reads W once, W bytes / memory bandwidth. What is left is latency: code
// outside of the inner loop runs once per launch and is kept short. Partial sums meet in shared
// memory in warp order.
#include <algorithm>

#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/matvec_parts.cuh"
#include "cuda/kernels/products/tiles.cuh"
#include "cuda/kernels/products/unit_product.cuh"
#include "cuda/kernels/products/weight_types.h"

namespace sharpi::cuda {
namespace {

using namespace matvec;

/// Leaves the warp's piece of panel v for finish(). Panel and warp only ever grow along the units,
/// and never stay both: their sum is a slot of its own for every piece.
/// Later parts of the columns add to what the same lane stored.
template <RowCount kRows>
__device__ __forceinline__ void store_piece(const StreamParams& p, const View& view, uint32_t v,
                                            bool first, bool last, bool later,
                                            const float (&acc)[kEightsOf<kRows>][4]) {
  const uint32_t rows = p.n_rows, g = view.lane / 4, t = view.lane % 4;
  float* piece =
      reinterpret_cast<float*>(view.shared + view.map.sums) + (v + view.warp) * kPanelRows * rows;
#pragma unroll
  for (uint32_t i = 0; i < 4 * kEightsOf<kRows>; ++i) {
    const uint32_t k = i % 4, column = i / 4 * 8 + 2 * t + k % 2;
    const float sum = acc[i / 4][k];
    float* to = piece + column * kPanelRows + g + k / 2 * 8;
    if (column < rows) *to = later ? *to + sum : sum;
  }
  if (view.lane == 0) {
    auto* warps = reinterpret_cast<uint32_t*>(view.shared + view.map.warps) + 2 * v;
    if (first) warps[0] = view.warp;
    if (last) warps[1] = view.warp;
  }
}

/// Products of the warp's next units, as long as their panels are of this type. `part`: the staged
/// part of the columns, of which a panel has `n_units`; `later`: it is not the first.
template <GgmlType kType, RowCount kRows>
__device__ __forceinline__ void run_units(const StreamParams& p, const View& view, Ring& ring,
                                          Position& at, const uint8_t* part, uint32_t n_units,
                                          bool later) {
  const uint32_t rows = p.n_rows, t = view.lane % 4, row = min(view.lane / 4, rows - 1);
  // The lane's row of the second eight, as far as there is one.
  const uint32_t step = kRows == RowCount::kSixteen ? min(row + 8, rows - 1) - row : 0;
  constexpr uint32_t kSumBytes = Tile<kType>::kHalves ? 64 : 32;
  const uint8_t* x = part + row * view.image.row_bytes + t * 16;
  const uint8_t* sums = part + row * kSumBytes + t * (kSumBytes / 4) +
                        (Tile<kType>::kHalves ? view.image.sums16 : view.image.sums32);
  const uint8_t* inverse = part + view.image.inverse + t * 8;
  const uint8_t* stages = view.shared + view.warp * p.n_stages * p.stage_bytes;
  const auto* panels = reinterpret_cast<const Panel*>(view.shared + view.map.panels);
  bool same = true;
#pragma unroll 1
  while (same) {
    float acc[kEightsOf<kRows>][4] = {};
    const uint32_t first_unit = panels[at.v].first_unit, begin = at.u,
                   end = min(p.units, begin + at.left), stop = min(end, n_units);
#pragma unroll 1
    for (uint32_t u = begin; u < stop; ++u) {
      int n_blocks = 8;
      if constexpr (!Tile<kType>::kSuper) n_blocks = static_cast<int>(min(8u, p.n_in / 32 - u * 8));
      const uint32_t unit = first_unit + u, stage = ring.wait(p.n_stages);
      const Inputs in = {x + unit * kUnitColumns * 2, sums + unit * rows * kSumBytes,
                         reinterpret_cast<const float*>(inverse + unit * view.image.columns * 4),
                         step * view.image.row_bytes, step * kSumBytes};
      unit_product<kType, kRows>(stages + stage * p.stage_bytes, n_blocks, in,
                                 static_cast<int>(view.lane), acc);
      __syncwarp();
      ring.issue(p, panels, stage, view.warp, view.lane);
    }
    store_piece<kRows>(p, view, at.v, begin == 0, end == p.units, later, acc);
    at.left -= end - begin;
    at.u = 0;
    ++at.v;
    same = at.left != 0 && panels[at.v].type == kType;
  }
}

template <RowCount kRows>
__device__ __forceinline__ void run_panels(const StreamParams& p, const View& view, Ring& ring,
                                           Position at, const uint8_t* part, uint32_t n_units,
                                           bool later) {
  // Not by with_type_of(), through whose function the compiler orders this kernel otherwise.
  static_assert(kBranchIsWhole<TiledTypes, GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1,
                               GgmlType::kQ5_0, GgmlType::kQ5_1, GgmlType::kMXFP4, GgmlType::kQ4_K,
                               GgmlType::kQ5_K, GgmlType::kQ6_K>);
  const auto* panels = reinterpret_cast<const Panel*>(view.shared + view.map.panels);
  while (at.left != 0) {
    switch (panels[at.v].type) {
      case GgmlType::kQ8_0:
        run_units<GgmlType::kQ8_0, kRows>(p, view, ring, at, part, n_units, later);
        break;
      case GgmlType::kQ4_0:
        run_units<GgmlType::kQ4_0, kRows>(p, view, ring, at, part, n_units, later);
        break;
      case GgmlType::kQ4_1:
        run_units<GgmlType::kQ4_1, kRows>(p, view, ring, at, part, n_units, later);
        break;
      case GgmlType::kQ5_0:
        run_units<GgmlType::kQ5_0, kRows>(p, view, ring, at, part, n_units, later);
        break;
      case GgmlType::kQ5_1:
        run_units<GgmlType::kQ5_1, kRows>(p, view, ring, at, part, n_units, later);
        break;
      case GgmlType::kMXFP4:
        run_units<GgmlType::kMXFP4, kRows>(p, view, ring, at, part, n_units, later);
        break;
      case GgmlType::kQ4_K:
        run_units<GgmlType::kQ4_K, kRows>(p, view, ring, at, part, n_units, later);
        break;
      case GgmlType::kQ5_K:
        run_units<GgmlType::kQ5_K, kRows>(p, view, ring, at, part, n_units, later);
        break;
      default:  // the last of the list
        run_units<GgmlType::kQ6_K, kRows>(p, view, ring, at, part, n_units, later);
        break;
    }
  }
}

/// Sum over the warps, in order, of element `e` = (row of x, row of the panel) of panel v.
__device__ __forceinline__ float panel_sum(const StreamParams& p, const View& view, uint32_t v,
                                           uint32_t e) {
  const uint32_t stride = kPanelRows * p.n_rows;
  const float* piece = reinterpret_cast<const float*>(view.shared + view.map.sums) + v * stride + e;
  const uint2 warps = reinterpret_cast<const uint2*>(view.shared + view.map.warps)[v];
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t w = warps.x; w <= warps.y; ++w) sum += piece[w * stride];
  return sum;
}

/// 1 / rms of row r, from the squares of its units.
__device__ __forceinline__ float norm_factor(const StreamParams& p, const View& view, uint32_t r) {
  const auto* squares = reinterpret_cast<const float*>(view.shared + view.map.image) + r;
  const uint32_t units = p.units * p.n_parts - p.n_absent;
  float sum = 0.0f;
#pragma unroll 8
  for (uint32_t u = 0; u < units; ++u) sum += squares[u * p.n_rows];
  return rsqrtf(sum / static_cast<float>(p.n_in) + p.norm_eps);
}

/// Adds up the pieces and lets them leave through the epilogue.
__device__ __forceinline__ void finish(const StreamParams& p, const View& view,
                                       uint32_t first_group, uint32_t n_groups) {
  const uint32_t per_panel = kPanelRows * p.n_rows;
  const auto* panels = reinterpret_cast<const Panel*>(view.shared + view.map.panels);
  for (uint32_t at = threadIdx.x; at < n_groups * per_panel; at += blockDim.x) {
    const uint32_t group = at / per_panel, e = at % per_panel, r = e / kPanelRows;
    float first = panel_sum(p, view, group, e), second = 0.0f;
    if (is_gated_epilogue(p.epilogue)) second = panel_sum(p, view, n_groups + group, e);
    if (p.norm_weight != nullptr) {
      const float norm = norm_factor(p, view, r);
      first *= norm;
      second *= norm;
    }
    if (p.biased) {
      const float2 bias = biases_of(p, first_group + group, e % kPanelRows);
      first += bias.x;
      second += bias.y;
    }
    float* y = panels[group].y + r * panels[group].y_stride + e % kPanelRows;
    store_output(p, y, r, first, second, y);
  }
}

/// Panel v of a block that owns groups [first, first + n_groups): all gates, then all ups.
__device__ __forceinline__ Panel make_panel(const StreamParams& p, uint32_t first,
                                            uint32_t n_groups, uint32_t v) {
  const uint32_t member = v / n_groups, group = first + v - member * n_groups;
  const PanelRef ref = find_panel<false>(p, group, is_gated_epilogue(p.epilogue) ? member : 0);
  Panel panel;
  panel.data = ref.data;
  panel.y = ref.task->y + ref.panel * kPanelRows;
  panel.y_stride = static_cast<uint32_t>(ref.task->y_stride);
  panel.unit_bytes = ref.task->unit_bytes;
  panel.tail_bytes = ref.task->tail_bytes;
  panel.first_unit = 0;
  panel.type = ref.task->type;
  return panel;
}

/// The rows are staged by a launch before (stage_rows.cu).
template <RowCount kRows>
__global__ void __launch_bounds__(kMaxThreads, 1)
    stream_kernel(const __grid_constant__ StreamParams p) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  View view;
  view.shared = shared_bytes;
  view.image = image_map(p.n_rows, p.units, p.n_parts);
  view.map = shared_map(p, view.image);
  view.warp = threadIdx.x / 32;
  view.lane = threadIdx.x % 32;

  const uint32_t block = blockIdx.x, extra = block < p.more_groups ? 1 : 0;
  const uint32_t n_groups = p.groups + extra, first = block * p.groups + min(block, p.more_groups);
  auto* panels = reinterpret_cast<Panel*>(shared_bytes + view.map.panels);
  if (threadIdx.x < n_groups * panels_per_group(p)) {
    panels[threadIdx.x] = make_panel(p, first, n_groups, threadIdx.x);
  }
  const uint32_t barriers = shared_address(shared_bytes) + view.map.barriers;
  Parts parts(p, view, barriers + p.n_warps * p.n_stages * 8);
  if (kHasBulkCopy && view.lane == 0) {
    for (uint32_t s = 0; s < p.n_stages; ++s)
      mbarrier_init(barriers + (view.warp * p.n_stages + s) * 8, 1);
    if (view.warp == 0) parts.init();
    mbarrier_init_fence();
  }
  __syncthreads();

  const Position at = first_position(p, view.warp);
  Ring ring;
  ring.base = shared_address(shared_bytes) + view.warp * p.n_stages * p.stage_bytes;
  ring.barriers = barriers + view.warp * p.n_stages * 8;
  ring.ahead = reinterpret_cast<Ahead*>(shared_bytes + view.map.ahead) + view.warp;
  ring.stage = ring.parity = 0;
  fill_ring(p, view, ring, at);

  grid_dependency_wait();
  parts.begin();
#pragma unroll 1
  for (uint32_t part = 0; part < p.n_parts; ++part) {
    const uint8_t* columns = parts.wait(part);
    // The next launch may start, not earlier: its weights would hold up this one's input.
    if (part == 0) grid_dependents_launch();
    const uint32_t n_units = part + 1 == p.n_parts ? p.units - p.n_absent : p.units;
    run_panels<kRows>(p, view, ring, at, columns, n_units, part != 0);
    parts.done(part);
  }
  __syncthreads();
  finish(p, view, first, n_groups);
}

template <RowCount kRows>
Status prepare_instance(int max_shared_bytes) {
  const auto set = [](cudaFuncAttribute attribute, int value) {
    return kernel_status(cudaFuncSetAttribute(stream_kernel<kRows>, attribute, value), "matvec");
  };
  SHARPI_TRY(set(cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes));
  // Launches of different sizes overlap only while the multiprocessor keeps one split of its
  // memory.
  return set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

}  // namespace

Status prepare_matvec(int max_shared_bytes) {
  SHARPI_TRY(prepare_row(max_shared_bytes));
  SHARPI_TRY(prepare_instance<RowCount::kEight>(max_shared_bytes));
  return prepare_instance<RowCount::kSixteen>(max_shared_bytes);
}

Status launch_matvec(const KernelConfig& config, StreamParams p, uint32_t grid_rows,
                     std::byte* workspace, uint64_t workspace_bytes, cudaStream_t stream,
                     const ChainBranch* branch) {
  for (uint32_t t = 0; t < p.n_tasks; ++t) {
    if (p.tasks[t].layout != WeightLayout::kTiles) {
      return Status::error(Code::kInternal,
                           "kernel matvec cannot take task %u, whose weights are not in tiles", t);
    }
    SHARPI_TRY(check_weights("matvec", p.tasks[t].type, WeightLayout::kTiles));
  }
  LaunchShape shape;
  uint32_t bytes = 0;
  const uint32_t blocks = plan_matvec(config.device, &p, &bytes);
  if (blocks == 0) {
    // A row that leaves no room for rings of such weights is read by the kernel that stages
    // nothing.
    if (p.n_rows == 1) return launch_matvec_f32(config, p, grid_rows, stream);
    if (branch != nullptr) {
      SHARPI_TRY(launch_branch_sum(config, p.x, *branch, p.n_rows, p.n_in, stream));
      p.x = branch->x_out;
    }
    const uint32_t half = p.n_rows / 2;
    SHARPI_TRY(launch_matvec(config, some_rows(p, 0, half), 1, workspace, workspace_bytes, stream));
    return launch_matvec(config, some_rows(p, half, p.n_rows - half), 1, workspace, workspace_bytes,
                         stream);
  }
  shape.grid = dim3(blocks, grid_rows);
  shape.block = dim3(p.n_warps * 32);
  shape.shared_bytes = bytes;
  shape.stream = stream;
  shape.pdl = config.pdl;
  if (p.n_rows == 1) return launch_row(p, shape);
  const ImageMap image = image_map(p.n_rows, p.units, p.n_parts);
  if (workspace_bytes < image.bytes) {
    return Status::error(Code::kInternal,
                         "kernel matvec has a workspace of %llu bytes, but %u are needed",
                         static_cast<unsigned long long>(workspace_bytes), image.bytes);
  }
  auto* staged = reinterpret_cast<uint8_t*>(workspace);
  SHARPI_TRY(launch_stage_rows(config, p, branch, staged, stream));
  p.image = staged;
  return p.n_rows <= 8 ? launch_kernel("matvec", shape, stream_kernel<RowCount::kEight>, p)
                       : launch_kernel("matvec", shape, stream_kernel<RowCount::kSixteen>, p);
}

}  // namespace sharpi::cuda
