// SPDX-License-Identifier: MIT
// y[o] = sum_i W[o][i] x[i] of one row, W in tiles, in fixed point (fixed_product.cuh,
// fixed_block.cuh): dense products and routed experts of a row. A block owns a contiguous range of
// panels (16 outputs); its warps share the panels' units (16 x 256) evenly, each streaming them
// through a ring of its own in shared memory that runs ahead of the arithmetic, and from before the
// grid dependency resolves where it is known which matrices are read. The row is staged once a
// block; the RMS norm's factor is applied to the sums, so that staging needs no sum over the row.
// Bound: reads W once, W bytes / memory bandwidth. What is left is latency, and instructions: what
// unpacks four bits takes as long as memory does, so a launch has as many warps as there is room
// for, and code outside of the inner loop runs once per launch and is kept short. Partial sums meet
// in shared memory in warp order.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/fixed_block.cuh"
#include "cuda/kernels/products/matvec_row.cuh"

namespace sharpi::cuda {
namespace {

using namespace matvec;

/// Leaves the warp's piece of panel v for finish(). Panel and warp only ever grow along the units,
/// and never stay both: their sum is a slot of its own for every piece.
__device__ __forceinline__ void store_piece(const RowView& view, uint32_t v, bool first, bool last,
                                            const FixedSums& acc) {
  const float lo = row_sum(acc.part[0]), hi = row_sum(acc.part[1]);
  float* piece = view.sums() + (v + view.warp) * kPanelRows + view.lane / 4;
  if (view.lane % 4 == 0) {
    piece[0] = lo;
    piece[8] = hi;
  }
  if (view.lane != 0) return;
  if (first) view.warps()[v].x = view.warp;
  if (last) view.warps()[v].y = view.warp;
}

/// Products of the warp's next units, as long as their panels are of this type.
template <GgmlType kType>
__device__ __forceinline__ void run_units(const StreamParams& p, const RowView& view, RowRing& ring,
                                          Position& at) {
  const uint8_t* image = view.shared + view.map.image;
  const uint8_t* x = image + view.lane / 4 % 2 * 32 + view.lane % 4 * 8;
  const auto* sums = reinterpret_cast<const float*>(image + view.fixed.sums);
  const auto* inverse = reinterpret_cast<const float*>(image + view.fixed.inverse);
  const uint8_t* stages = view.shared + view.warp * p.n_stages * p.stage_bytes;
  bool same = true;
#pragma unroll 1
  while (same) {
    FixedSums acc;
    const uint32_t first_unit = view.panels()[at.v].first_unit, begin = at.u,
                   end = min(p.units, begin + at.left);
#pragma unroll 1
    for (uint32_t u = begin; u < end; ++u) {
      int n_blocks = 8;
      if constexpr (!Tile<kType>::kSuper) n_blocks = static_cast<int>(min(8u, p.n_in / 32 - u * 8));
      const uint32_t unit = first_unit + u, stage = ring.wait(p.n_stages);
      const FixedInputs in = {x + unit * 512, sums + unit * 8, inverse[unit]};
      add_unit<kType>(stages + stage * p.stage_bytes, n_blocks, in, static_cast<int>(view.lane),
                      acc);
      __syncwarp();
      ring.issue(p, view, stage);
    }
    store_piece(view, at.v, begin == 0, end == p.units, acc);
    at.left -= end - begin;
    at.u = 0;
    ++at.v;
    same = at.left != 0 && view.panels()[at.v].type == kType;
  }
}

/// Sum over the warps, in order, of output e of panel v.
__device__ __forceinline__ float panel_sum(const RowView& view, uint32_t v, uint32_t e) {
  const float* piece = view.sums() + v * kPanelRows + e;
  const uint2 warps = view.warps()[v];
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t w = warps.x; w <= warps.y; ++w) sum += piece[w * kPanelRows];
  return sum;
}

/// 1 / rms of the row, from the squares of its units.
__device__ __forceinline__ float norm_factor(const StreamParams& p, const RowView& view) {
  const auto* squares =
      reinterpret_cast<const float*>(view.shared + view.map.image + view.fixed.squares);
  float sum = 0.0f;
#pragma unroll 8
  for (uint32_t u = 0; u < p.units; ++u) sum += squares[u];
  return rsqrtf(sum / static_cast<float>(p.n_in) + p.norm_eps);
}

/// Adds up the pieces and lets them leave through the epilogue. `old`: what y of the thread's first
/// output held.
__device__ __forceinline__ void finish(const StreamParams& p, const RowView& view,
                                       uint32_t n_groups, float old) {
  const bool gated = is_gated_epilogue(p.epilogue);
  for (uint32_t at = threadIdx.x; at < n_groups * kPanelRows; at += blockDim.x) {
    const uint32_t group = at / kPanelRows, e = at % kPanelRows;
    float first = panel_sum(view, group, e), second = 0.0f;
    for (uint32_t j = 1; j < p.n_segments; ++j) first += panel_sum(view, j * n_groups + group, e);
    if (gated) second = panel_sum(view, n_groups + group, e);
    if (p.norm_weight != nullptr) {
      const float norm = norm_factor(p, view);
      first *= norm;
      second *= norm;
    }
    if (p.biased) {
      const float* bias = view.biases() + group * kPanelRows + e;
      for (uint32_t j = 0; j < p.n_segments; ++j) first += bias[j * n_groups * kPanelRows];
      if (gated) second += bias[n_groups * kPanelRows];
    }
    float* y = view.panels()[group].y + e;
    float held = old;
    if (at != threadIdx.x && p.epilogue == Epilogue::kAdd) held = *y;
    store_output(p, y, p.mode == StreamMode::kDense ? 0 : blockIdx.y, first, second, &held);
  }
}

/// kMoe: expert ids say which matrices are read, so nothing is read ahead of the dependency but
/// where they are older than the launch before (StreamParams::ids_known). kBlocks: of a
/// multiprocessor. Where blocks of the next launch have room beside this one's, they ask for their
/// weights while this one still waits for its last ones, which then come behind those; that cost a
/// tenth of the time of a layer. Experts are many small blocks, and a launch whose weights are all
/// asked for at once loses nothing: these have registers for two.
template <bool kMoe, int kBlocks>
__global__ void __launch_bounds__(kMaxThreads, kBlocks)
    row_kernel(const __grid_constant__ StreamParams p) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  RowView view;
  view.shared = shared_bytes;
  view.map = row_map(p);
  view.fixed = fixed_map(kMoe ? p.units * p.n_segments : p.units);
  view.warp = threadIdx.x / 32;
  view.lane = threadIdx.x % 32;
  RowRing ring(p, view);
  RowShare<kBlocks == 1 ? 4 : 3> row;
  row.load_weights(p, view);
  if (kMoe && !p.ids_known) grid_dependency_wait();

  const uint32_t extra = blockIdx.x < p.more_groups ? 1 : 0, n_groups = p.groups + extra,
                 first = blockIdx.x * p.groups + min(blockIdx.x, p.more_groups);
  const uint32_t n_panels = n_groups * panels_per_group(p);
  if (threadIdx.x < n_panels) {
    view.panels()[threadIdx.x] = make_panel<kMoe>(p, first, n_groups, threadIdx.x);
  }
  __syncthreads();
  Position at = first_position(p, view.warp);
  ring.fill(p, view, at);
  float bias = 0.0f;
  if (p.biased && threadIdx.x < n_panels * kPanelRows) bias = bias_of(view, threadIdx.x);

  if (!kMoe || p.ids_known) grid_dependency_wait();
  row.template load_inputs_ahead<kMoe>(p, view);
  row.template stage<kMoe>(p, view, n_groups);
  if (p.biased) {
    for (uint32_t i = threadIdx.x; i < n_panels * kPanelRows; i += blockDim.x)
      view.biases()[i] = i == threadIdx.x ? bias : bias_of(view, i);
  }
  __syncthreads();
  float old = 0.0f;
  if (p.epilogue == Epilogue::kAdd && threadIdx.x < n_groups * kPanelRows)
    old = view.panels()[threadIdx.x / kPanelRows].y[threadIdx.x % kPanelRows];
  // The next launch may start, not earlier: its weights would hold up this one's input.
  grid_dependents_launch();
#pragma unroll 1
  while (at.left != 0) {
    with_type_of<TiledTypes>(view.panels()[at.v].type,
                             [&]<GgmlType kType>() { run_units<kType>(p, view, ring, at); });
  }
  __syncthreads();
  finish(p, view, n_groups, old);
}

template <bool kMoe, int kBlocks>
Status prepare_instance(int max_shared_bytes) {
  const auto set = [](cudaFuncAttribute attribute, int value) {
    return kernel_status(cudaFuncSetAttribute(row_kernel<kMoe, kBlocks>, attribute, value),
                         "matvec");
  };
  SHARPI_TRY(set(cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes));
  // Launches of different sizes overlap only while the multiprocessor keeps one split of its
  // memory.
  return set(cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

}  // namespace

Status matvec::prepare_row(int max_shared_bytes) {
  SHARPI_TRY((prepare_instance<false, 1>(max_shared_bytes)));
  SHARPI_TRY((prepare_instance<false, 2>(max_shared_bytes)));
  return prepare_instance<true, 2>(max_shared_bytes);
}

Status matvec::launch_row(const StreamParams& p, const LaunchShape& shape) {
  if (p.mode != StreamMode::kDense) return launch_kernel("matvec", shape, row_kernel<true, 2>, p);
  return rings_hold_all(p) ? launch_kernel("matvec", shape, row_kernel<false, 2>, p)
                           : launch_kernel("matvec", shape, row_kernel<false, 1>, p);
}

}  // namespace sharpi::cuda
