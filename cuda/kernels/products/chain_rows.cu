// SPDX-License-Identifier: MIT
// chain.cu with two to four rows: the same rings, which the staged rows leave less room for, and
// the same hand-over; a row has the bits that it has alone, but for products that go in parts of
// their columns.
// Bound: W bytes / memory bandwidth, while what lies in the rings outlasts what is waited for.
#include "cuda/kernels/launch.h"
#include "cuda/kernels/products/chain_feed.cuh"
#include "cuda/kernels/products/chain_rows.cuh"

namespace sharpi::cuda {
namespace {

/// Units from a warp's ring.
template <uint32_t kRows>
struct RingUnits {
  const ChainLaunch& p;
  const ChainView& view;
  uint32_t tail = 0;
  SlotTurn turn;

  /// Products of the warp's next units, as long as their panels are of this type.
  template <GgmlType kType>
  __device__ __forceinline__ void take_units(const ChainProduct& q, const ChainPanel* panels,
                                             Position& at) {
    const StagedRows<kRows> staged(p, q, view);
    const uint8_t* ring = view.shared + view.warp * p.ring_bytes;
    const uint32_t full = shared_address(slots_of(p, view).full[view.warp]),
                   empty = shared_address(slots_of(p, view).empty[view.warp]);
    bool same = true;
#pragma unroll 1
    while (same) {
      RowSums<kRows> acc;
      const uint32_t bytes = panels[at.v].unit_bytes;
      const uint32_t begin = at.u, end = min(q.units, begin + at.left);
#pragma unroll 1
      for (uint32_t u = begin; u < end; ++u) {
        const uint32_t from = ring_wraps(tail, bytes, p.ring_bytes) ? 0 : tail;
        mbarrier_wait(full + turn.slot * 8, turn.parity);
        const auto lane = static_cast<int>(view.lane);
        FixedRows<kType, kRows>::add(MemoryUnit<kType>{ring + from, lane}, staged.unit(u), lane,
                                     acc);
        __syncwarp();
        if (view.lane < p.arrivals) mbarrier_arrive(empty + turn.slot * 8);
        tail = from + bytes;
        turn.next();
      }
      leave_rows_piece<kRows>(p, view, at.v, begin == 0, end == q.units, acc);
      at.left -= end - begin;
      at.u = 0;
      ++at.v;
      same = at.left != 0 && panels[at.v].type == static_cast<uint8_t>(kType);
    }
  }

  __device__ __forceinline__ void take(uint32_t k, const Work& work) {
    tell_multiplies(p, view, 1);
    const ChainProduct& q = p.products[k];
    const ChainPanel* panels = panel_table(p, view.shared) + work.base;
    const Share s = share_of(work.n_panels * q.units, view.warp);
    Position at;
    at.left = s.count;
    at.v = s.first / q.units;
    at.u = s.first - at.v * q.units;
    while (at.left != 0) {
      with_chain_type(panels[at.v].type,
                      [&]<GgmlType kType>() { take_units<kType>(q, panels, at); });
    }
    tell_multiplies(p, view, 0);
  }
};

/// kPairs: in clusters of two blocks.
template <uint32_t kRows, bool kPairs>
__global__ void __launch_bounds__((kShareWarps + kFeeders) * 32, 1)
    chain_rows_kernel(const __grid_constant__ ChainLaunch p) {
  if constexpr (!kHasBulkCopy) return;  // the host never launches it there
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  ChainView view;
  view.shared = shared_bytes;
  view.warp = threadIdx.x / 32;
  view.lane = threadIdx.x % 32;
  init_rings(p, view);
  Staging<kPairs> staging;
  staging.begin(p, view);
  lay_out<true>(p, view);
  if constexpr (kPairs) {
    meet_twin();
  } else {
    __syncthreads();
  }
  if (view.warp >= kShareWarps) {
    feed_rings(p, view);
    return;
  }
  RingUnits<kRows> units{p, view};
  multiply_rows<kRows, kPairs>(p, view, staging, units);
}

/// f(kernel) of every form.
template <class Fn>
Status for_kernels(const Fn& f) {
  for (const auto kernel : {chain_rows_kernel<2, false>, chain_rows_kernel<kMaxChainRows, false>,
                            chain_rows_kernel<2, true>, chain_rows_kernel<kMaxChainRows, true>}) {
    SHARPI_TRY(f(kernel));
  }
  return Status::ok();
}

}  // namespace

Status launch_chain_rows(LaunchShape shape, const ChainLaunch& l, bool pairs) {
  if (pairs && !shape.cooperative) {
    shape.cluster = 2;
    return launch_kernel(
        "chain_rows", shape,
        l.n_rows <= 2 ? chain_rows_kernel<2, true> : chain_rows_kernel<kMaxChainRows, true>, l);
  }
  return launch_kernel(
      "chain_rows", shape,
      l.n_rows <= 2 ? chain_rows_kernel<2, false> : chain_rows_kernel<kMaxChainRows, false>, l);
}

Status prepare_chain_rows(int max_shared_bytes) {
  return for_kernels([&](auto kernel) {
    return kernel_status(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, max_shared_bytes),
        "chain_rows");
  });
}

bool chain_pairs_fit(const DeviceProfile& device) {
  if (device.n_sm % 2 != 0 || !prepare_chain_rows(device.shared_per_block).is_ok()) return false;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<uint32_t>(device.n_sm));
  config.blockDim = dim3((kShareWarps + kFeeders) * 32);
  config.dynamicSmemBytes = static_cast<size_t>(device.shared_per_block);
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = 2;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int most = 0;
  const cudaError_t asked =
      cudaOccupancyMaxActiveClusters(&most, chain_rows_kernel<kMaxChainRows, true>, &config);
  if (asked != cudaSuccess) return cudaGetLastError(), false;
  return 2 * most >= device.n_sm;
}

}  // namespace sharpi::cuda
