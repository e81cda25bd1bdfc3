// SPDX-License-Identifier: MIT
// The form of chain.cu for devices whose blocks have no room for its rings (99 KiB and less than
// 200), or that cannot copy in bulk: the units of a warp come straight from device memory into its
// registers, of which every multiprocessor has 256 KiB. While a warp multiplies a unit, each part
// of it that was read is asked for again of the next unit (fixed_unit.cuh): sixteen warps have a
// unit each under way, 37 to 55 KB, with no more instructions than reading them from a ring. From
// product to product the first unit of the next one is asked for before the outputs leave (bringing
// more of them into L2 was slower: what a block waits for queues behind). Everything else is as
// there.
// Bound: W bytes / memory bandwidth, plus what a product's meeting takes beyond a unit a warp.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/chain_parts.cuh"

namespace sharpi::cuda {
namespace {

/// Products of the warp's next units, as long as their panels are of this type; the first one is
/// held.
template <GgmlType kType>
__device__ __forceinline__ void take_units(const ChainLaunch& p, const ChainProduct& q,
                                           const ChainView& view, const ChainPanel* panels,
                                           HeldUnit& held, Position& at) {
  const FixedMap map = fixed_map(q.units);
  const uint8_t* image = view.shared + p.image;
  const uint8_t* x = image + view.lane / 4 % 2 * 32 + view.lane % 4 * 8;
  const auto* sums = reinterpret_cast<const float*>(image + map.sums);
  const auto* inverse = reinterpret_cast<const float*>(image + map.inverse);
  const auto lane = static_cast<int>(view.lane);
  bool same = true;
#pragma unroll 1
  while (same) {
    FixedSums acc;
    const uint32_t bytes = panels[at.v].unit_bytes;
    const uint32_t begin = at.u, end = min(q.units, begin + at.left);
    at.left -= end - begin;
    same = at.left != 0 && panels[at.v + 1].type == static_cast<uint8_t>(kType);
    const uint8_t* next = panels[at.v].data + (begin + 1) * bytes;
    const uint8_t* behind = same ? panels[at.v + 1].data : nullptr;
#pragma unroll 1
    for (uint32_t u = begin; u < end; ++u) {
      const FixedInputs in = {x + u * 512, sums + u * 8, inverse[u]};
      if (u + 1 == end) next = behind;
      FixedProduct<kType>::add(RegisterUnit<kType>{held, next, lane}, in, lane, acc);
      next += bytes;
    }
    leave_piece(p, view, at.v, begin == 0, end == q.units, acc);
    at.u = 0;
    ++at.v;
  }
}

__device__ __forceinline__ void take_panels(const ChainLaunch& p, uint32_t k, const ChainView& view,
                                            const Work& work, HeldUnit& held) {
  const ChainProduct& q = p.products[k];
  const ChainPanel* panels = panel_table(p, view.shared) + work.base;
  Position at = first_of(p, view, k);
  bool first = true;
#pragma unroll 1
  while (at.left != 0) {
    with_chain_type(panels[at.v].type, [&]<GgmlType kType>() {
      if (!first) hold_unit<kType>(panels[at.v].data, static_cast<int>(view.lane), held);
      take_units<kType>(p, q, view, panels, held, at);
    });
    first = false;
  }
}

__global__ void __launch_bounds__(kShareThreads, 1)
    chain_registers_kernel(const __grid_constant__ ChainLaunch p) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  ChainView view;
  view.shared = shared_bytes;
  view.warp = threadIdx.x / 32;
  view.lane = threadIdx.x % 32;
  lay_out(p, view);
  __syncthreads();
  HeldUnit held = {};
  ask_ahead(p, view, 0, held);
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
    const bool last = k + 1 == p.n_products;
    if (last) clear_other_set(p, view);
    take_panels(p, k, view, work, held);
    if (!last) {
      ask_ahead(p, view, k + 1, held);
      prefetch_norms(p.products[k + 1]);
    }
    const float norm = input_norm(p, q, view);
    meet();
    leave(p, q, view, work, norm, scale, old);
  }
  if (threadIdx.x == 0) p.states[blockIdx.x] = {state.launches + 1, p.n_handed};
}

}  // namespace

Status launch_chain_registers(const LaunchShape& base, const ChainLaunch& l) {
  LaunchShape shape = base;
  shape.block = dim3(kShareThreads);
  return launch_kernel("chain_registers", shape, chain_registers_kernel, l);
}

Status prepare_chain_registers(int max_shared_bytes) {
  return kernel_status(
      cudaFuncSetAttribute(chain_registers_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           max_shared_bytes),
      "chain_registers");
}

}  // namespace sharpi::cuda
