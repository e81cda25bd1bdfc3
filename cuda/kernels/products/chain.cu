// SPDX-License-Identifier: MIT
// A chain, matrix products of one row that follow each other, as one launch of a persistent kernel
// with one block for each multiprocessor. Warps are specialised: sixteen compute, four copy.
// Weights are constants: every warp knows from the start which units (16 rows x 256 columns) of
// which product it will read. Its ring buffer in shared memory is kept full of them
// (chain_feed.cuh), across products, and from before the grid dependency resolves (programmatic
// dependent launch). Outputs of one product reach the next through L2 (chain_stage.cuh): a reader
// waits for the values it needs; there is no barrier over the grid. What a product costs beyond
// reading its bytes (adding up partial sums, the way of outputs through L2 and of the next input
// into shared memory) is hidden while the ring buffers fill.
// A block owns whole panels (16 rows) of each product. Where panels do not divide evenly, other
// blocks get one more in every product, and the ring buffers even out the rest.
// Bound: W bytes / memory bandwidth, while the ring buffers hold more than the waits take.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/chain_feed.cuh"
#include "cuda/kernels/products/chain_parts.cuh"
#include "cuda/kernels/products/unit_product.cuh"

namespace sharpi::cuda {
namespace {

/// Where the warp reads its ring.
struct Take {
  uint32_t tail = 0;
  PipelineState place;
};

/// Products of the warp's next units, as long as their panels are of this type.
template <GgmlType kType>
__device__ __forceinline__ void take_units(const ChainLaunch& p, const ChainProduct& q,
                                           const ChainView& view, const ChainPanel* panels,
                                           Take& take, Position& at) {
  const FixedMap map = fixed_map(q.units);
  const uint8_t* image = view.shared + p.image;
  const uint8_t* x = image + view.lane / 4 % 2 * 32 + view.lane % 4 * 8;
  const auto* sums = reinterpret_cast<const float*>(image + map.sums);
  const auto* inverse = reinterpret_cast<const float*>(image + map.inverse);
  const uint8_t* ring = view.shared + view.warp * p.ring_bytes;
  const uint32_t full = shared_address(slots_of(p, view).full[view.warp]),
                 empty = shared_address(slots_of(p, view).empty[view.warp]);
  bool same = true;
#pragma unroll 1
  while (same) {
    FixedSums acc;
    const uint32_t bytes = panels[at.v].unit_bytes;
    const uint32_t begin = at.u, end = min(q.units, begin + at.left);
#pragma unroll 1
    for (uint32_t u = begin; u < end; ++u) {
      const uint32_t from = ring_wraps(take.tail, bytes, p.ring_bytes) ? 0 : take.tail;
      const FixedInputs in = {x + u * 512, sums + u * 8, inverse[u]};
      mbarrier_wait(full + take.place.slot * 8, take.place.parity);
      const auto lane = static_cast<int>(view.lane);
      FixedProduct<kType>::add(MemoryUnit<kType>{ring + from, lane}, in, lane, acc);
      __syncwarp();
      if (view.lane < p.arrivals) mbarrier_arrive(empty + take.place.slot * 8);
      take.tail = from + bytes;
      take.place.next();
    }
    leave_piece(p, view, at.v, begin == 0, end == q.units, acc);
    at.left -= end - begin;
    at.u = 0;
    ++at.v;
    same = at.left != 0 && panels[at.v].type == static_cast<uint8_t>(kType);
  }
}

__device__ __forceinline__ void take_panels(const ChainLaunch& p, uint32_t k, const ChainView& view,
                                            const Work& work, Take& take) {
  const ChainProduct& q = p.products[k];
  const ChainPanel* panels = panel_table(p, view.shared) + work.base;
  const Share s = share_of(work.n_panels * q.units, view.warp);
  Position at;
  at.left = s.count;
  at.v = s.first / q.units;
  at.u = s.first - at.v * q.units;
  while (at.left != 0) {
    with_chain_type(panels[at.v].type,
                    [&]<GgmlType kType>() { take_units<kType>(p, q, view, panels, take, at); });
  }
}

/// kShareWarps warps compute, kFeeders more copy.
__global__ void __launch_bounds__((kShareWarps + kFeeders) * 32, 1)
    chain_kernel(const __grid_constant__ ChainLaunch p) {
  if constexpr (!kHasBulkCopy) return;  // the host never launches it there
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  ChainView view;
  view.shared = shared_bytes;
  view.warp = threadIdx.x / 32;
  view.lane = threadIdx.x % 32;
  init_rings(p, view);
  lay_out(p, view);
  __syncthreads();
  if (view.warp >= kShareWarps) {
    feed_rings(p, view);
    return;
  }
  Take take;
  prefetch_norms(p.products[0]);
  grid_dependency_wait();
  grid_dependents_launch();
  ChainState state = {};
  if (threadIdx.x == 0) {
    state.launches = load_fresh(&p.states[blockIdx.x].launches);
    state.handed = load_fresh(&p.states[blockIdx.x].handed);
  }

#pragma unroll 1
  for (uint32_t k = 0; k < p.n_products; ++k) {
    const ChainProduct& q = p.products[k];
    const Work& work = work_of(p, view.shared, k);
    if (q.has_branch) {
      stage_branch(p, q, view);
    } else {
      stage_row(p, q, view);
    }
    if (k == 0 && threadIdx.x == 0) state_of(p, view) = state;
    meet();
    float old = 0.0f, scale = 1.0f;
    if (threadIdx.x < work.n_groups * kPanelRows) {
      const ChainPanel* panels = panel_table(p, view.shared) + work.base;
      if (q.row_scale != nullptr) scale = load_fresh(q.row_scale);
      if (q.epilogue == Epilogue::kAdd)
        old = load_fresh(before_of(panels[threadIdx.x / kPanelRows], handed_set(p, view),
                                   threadIdx.x % kPanelRows));
    }
    if (k + 1 < p.n_products) {
      prefetch_norms(p.products[k + 1]);
    } else {
      clear_other_set(p, view);
    }
    tell_multiplies(p, view, 1);
    take_panels(p, k, view, work, take);
    tell_multiplies(p, view, 0);
    const float norm = input_norm(p, q, view);
    meet();
    leave(p, q, view, work, norm, scale, old);
  }
  if (threadIdx.x == 0) p.states[blockIdx.x] = {state.launches + 1, p.n_handed};
}

}  // namespace

Status launch_chain(const KernelConfig& config, const ChainLink* links, uint32_t n_links,
                    std::byte* sync, cudaStream_t stream, const ChainTuning& tuning) {
  if (n_links == 0 || n_links > kMaxChainLinks || sync == nullptr) {
    return Status::error(Code::kInternal, "chain of %u products", n_links);
  }
  for (uint32_t k = 0; k < n_links; ++k) {
    if (!chain_takes(config, links[k], tuning))
      return Status::error(Code::kInternal, "chain: product %u does not fit", k);
  }
  ChainLaunch l;
  if (!make_chain_launch(config, links, n_links, sync, tuning, &l))
    return Status::error(Code::kInternal, "chain: no launch for these %u products", n_links);
  LaunchShape shape;
  shape.grid = dim3(static_cast<uint32_t>(config.device.n_sm));
  shape.block = dim3((kShareWarps + kFeeders) * 32);
  shape.shared_bytes = l.shared_bytes;
  shape.stream = stream;
  shape.pdl = config.pdl;
  shape.cooperative = tuning.cooperative;
  if (l.n_rows > 1) return launch_chain_rows_registers(shape, l);
  if (chain_form(config, tuning) == ChainForm::kRegisters) return launch_chain_registers(shape, l);
  return launch_kernel("chain", shape, chain_kernel, l);
}

Status prepare_chain(const KernelConfig& config) {
  SHARPI_TRY(prepare_chain_registers(config.device.shared_per_block));
  SHARPI_TRY(prepare_chain_rows_registers(config.device.shared_per_block));
  return kernel_status(
      cudaFuncSetAttribute(chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           config.device.shared_per_block),
      "chain");
}

}  // namespace sharpi::cuda
