// SPDX-License-Identifier: MIT
// chain_registers.cu with two to four rows: units come straight from device memory into registers,
// and the staged rows have all of a block's shared memory. There is no such form of chain.cu:
// where blocks have rings, several rows are faster launch by launch (docs/experiments.md).
// Bound: W bytes / memory bandwidth, plus what a product's meeting takes beyond a unit a warp.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/chain_rows.cuh"

namespace sharpi::cuda {
namespace {

/// Units in the warp's registers, the next one always under way.
template <uint32_t kRows>
struct HeldUnits {
  const ChainLaunch& p;
  const ChainView& view;
  HeldUnit held = {};

  /// Products of the warp's next units, as long as their panels are of this type; the first one is
  /// held.
  template <GgmlType kType>
  __device__ __forceinline__ void take_units(const ChainProduct& q, const ChainPanel* panels,
                                             Position& at) {
    const StagedRows<kRows> staged(p, q, view);
    const auto lane = static_cast<int>(view.lane);
    bool same = true;
#pragma unroll 1
    while (same) {
      RowSums<kRows> acc;
      const uint32_t bytes = panels[at.v].unit_bytes;
      const uint32_t begin = at.u, end = min(q.units, begin + at.left);
      at.left -= end - begin;
      same = at.left != 0 && panels[at.v + 1].type == static_cast<uint8_t>(kType);
      const uint8_t* next = panels[at.v].data + (begin + 1) * bytes;
      const uint8_t* behind = same ? panels[at.v + 1].data : nullptr;
#pragma unroll 1
      for (uint32_t u = begin; u < end; ++u) {
        if (u + 1 == end) next = behind;
        FixedRows<kType, kRows>::add(RegisterUnit<kType>{held, next, lane}, staged.unit(u), lane,
                                     acc);
        next += bytes;
      }
      leave_rows_piece<kRows>(p, view, at.v, begin == 0, end == q.units, acc);
      at.u = 0;
      ++at.v;
    }
  }

  __device__ __forceinline__ void take(uint32_t k, const Work& work) {
    const ChainPanel* panels = panel_table(p, view.shared) + work.base;
    Position at = first_of(p, view, k);
    bool first = true;
#pragma unroll 1
    while (at.left != 0) {
      with_chain_type(panels[at.v].type, [&]<GgmlType kType>() {
        if (!first) hold_unit<kType>(panels[at.v].data, static_cast<int>(view.lane), held);
        take_units<kType>(p.products[k], panels, at);
      });
      first = false;
    }
    if (k + 1 < p.n_products) ask_ahead(p, view, k + 1, held);
  }
};

template <uint32_t kRows>
__global__ void __launch_bounds__(kShareThreads, 1)
    chain_rows_registers_kernel(const __grid_constant__ ChainLaunch p) {
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  ChainView view;
  view.shared = shared_bytes;
  view.warp = threadIdx.x / 32;
  view.lane = threadIdx.x % 32;
  lay_out<true>(p, view);
  __syncthreads();
  HeldUnits<kRows> units{p, view};
  ask_ahead(p, view, 0, units.held);
  prefetch_norms(p.products[0]);
  grid_dependency_wait();
  grid_dependents_launch();
  if (threadIdx.x == 0) {
    state_of(p, view) = {load_fresh(&p.states[blockIdx.x].launches),
                         load_fresh(&p.states[blockIdx.x].handed)};
  }
  Carried carried;
#pragma unroll 1
  for (uint32_t k = 0; k < p.n_products; ++k) {
    const ChainProduct& q = p.products[k];
    const Work& work = work_of(p, view.shared, k);
    if (q.has_branch) {
      stage_branches<kRows>(p, k, view);
    } else {
      stage_rows<kRows>(p, k, view);
    }
    meet();
    const bool last = k + 1 == p.n_products, carries = p.columns[k].carries;
    const float old = carries ? 0.0f : first_before<kRows>(p, q, view, work);
    if (last) {
      clear_other_set(p, view);
    } else {
      prefetch_norms(p.products[k + 1]);
    }
    units.take(k, work);
    keep_norms<kRows>(p, q, view);
    meet();
    if (carries) {
      carry_on<kRows>(p, view, work, carried);
    } else {
      leave_rows<kRows>(p, q, view, work, old, carried);
      carried = {};
    }
  }
  if (threadIdx.x == 0) p.states[blockIdx.x] = {state_of(p, view).launches + 1, p.n_handed};
}

}  // namespace

Status launch_chain_rows_registers(const LaunchShape& base, const ChainLaunch& l) {
  LaunchShape shape = base;
  shape.block = dim3(kShareThreads);
  if (l.n_rows <= 2)
    return launch_kernel("chain_rows_registers", shape, chain_rows_registers_kernel<2>, l);
  return launch_kernel("chain_rows_registers", shape, chain_rows_registers_kernel<4>, l);
}

Status prepare_chain_rows_registers(int max_shared_bytes) {
  for (const auto kernel : {chain_rows_registers_kernel<2>, chain_rows_registers_kernel<4>}) {
    SHARPI_TRY(kernel_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes),
        "chain_rows_registers"));
  }
  return Status::ok();
}

}  // namespace sharpi::cuda
