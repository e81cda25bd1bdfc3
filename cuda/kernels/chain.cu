// SPDX-License-Identifier: MIT
// Products of one row, one after the other, in one launch of one block a multiprocessor: sixteen
// warps compute, four more copy.
// Weights are constants: every warp knows from the start which units (16 rows x 256 columns) of
// which product it will read; its ring in shared memory is kept full of them (chain_feed.cuh),
// across products and from before the grid dependency resolves. Between products outputs are handed
// on through L2 (chain_stage.cuh): whoever reads a row waits for its values, nobody for a barrier
// over the grid. What a product costs besides its bytes (the sums of its pieces, the way of its
// outputs through L2 and of the next input into shared memory) passes while the rings fill.
// A block owns whole panels (16 rows) of each product; the blocks that get one more take turns from
// product to product, and the rings even out the rest.
// Bound: W bytes / memory bandwidth, while what lies in the rings outlasts what is waited for.
#include "cuda/kernels/chain_feed.cuh"
#include "cuda/kernels/chain_stage.cuh"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/unit_product.cuh"

namespace sharpi::cuda {
namespace {

/// Where the warp reads its ring.
struct Take {
  uint32_t tail, slot, parity;
};

struct Position {
  uint32_t v, u, left;  // unit u of panel v of the block's part; units to go
};

/// Leaves the warp's piece of panel v. Panel and warp only ever grow along the units, and never
/// stay both: their sum is a slot of its own for every piece.
__device__ __forceinline__ void leave_piece(const ChainLaunch& p, const ChainView& view, uint32_t v,
                                            bool first, bool last, const FixedSums& acc) {
  float sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] = acc.part[h] + __shfl_xor_sync(~0u, acc.part[h], 1);
    sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
  }
  float* part = reinterpret_cast<float*>(view.shared + p.part) + (v + view.warp) * kPanelRows;
  if (view.lane % 4 == 0) {
    part[view.lane / 4] = sum[0];
    part[view.lane / 4 + 8] = sum[1];
  }
  if (view.lane == 0) {
    auto* range = reinterpret_cast<uint32_t*>(view.shared + p.range) + 2 * v;
    if (first) range[0] = view.warp;
    if (last) range[1] = view.warp;
  }
}

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
      const bool wraps = take.tail + bytes > p.ring_bytes;
      const uint32_t from = wraps ? 0 : take.tail;
      const FixedInputs in = {x + u * 512, sums + u * 8, inverse[u]};
      mbarrier_wait(full + take.slot * 8, take.parity);
      FixedProduct<kType>::add(ring + from, in, static_cast<int>(view.lane), acc);
      __syncwarp();
      if (view.lane < p.arrivals) mbarrier_arrive(empty + take.slot * 8);
      take.tail = from + bytes;
      take.slot = (take.slot + 1) % kSlots;
      take.parity ^= take.slot == 0 ? 1u : 0u;
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
  const Share s = share_of(work.n_panels, q.units, view.warp);
  Position at;
  at.left = s.count;
  at.v = s.first / q.units;
  at.u = s.first - at.v * q.units;
  const auto run = [&]<GgmlType kType>() { take_units<kType>(p, q, view, panels, take, at); };
  while (at.left != 0) {
    switch (static_cast<GgmlType>(panels[at.v].type)) {
      case GgmlType::kQ8_0:
        run.template operator()<GgmlType::kQ8_0>();
        break;
      case GgmlType::kQ4_0:
        run.template operator()<GgmlType::kQ4_0>();
        break;
      case GgmlType::kQ4_K:
        run.template operator()<GgmlType::kQ4_K>();
        break;
      case GgmlType::kQ5_K:
        run.template operator()<GgmlType::kQ5_K>();
        break;
      default:
        run.template operator()<GgmlType::kQ6_K>();
        break;
    }
  }
}

/// The block's part of each product, and the table of its panels: a product each warp.
__device__ __forceinline__ void lay_out(const ChainLaunch& p, const ChainView& view) {
  if (view.warp >= p.n_products) return;
  const auto turn_of = [&](const ChainSplit& s) {
    const uint32_t turn = blockIdx.x + gridDim.x - s.first;
    return turn >= gridDim.x ? turn - gridDim.x : turn;
  };
  uint32_t base = 0;
  for (uint32_t k = 0; k < view.warp; ++k) {
    const ChainSplit& s = p.splits[k];
    base += (s.groups + (turn_of(s) < s.more ? 1 : 0)) * s.members;
  }
  const ChainSplit& split = p.splits[view.warp];
  const ChainProduct& q = p.products[view.warp];
  const uint32_t turn = turn_of(split);
  const uint32_t n = split.groups + (turn < split.more ? 1 : 0), n_panels = n * split.members;
  const uint32_t first = turn * split.groups + min(turn, split.more);
  if (view.lane == 0)
    reinterpret_cast<Work*>(view.shared + p.works)[view.warp] = {base, n, n_panels, 0};
  auto* table = reinterpret_cast<ChainPanel*>(view.shared + p.panels);
  for (uint32_t v = view.lane; v < n_panels; v += 32) {
    uint32_t t = v >= n ? 1 : 0;
    const uint32_t group = first + v - t * n;
    if (split.members == 1) {
      for (uint32_t j = 1; j < q.n_tasks; ++j) t = group >= q.tasks[j].first_group ? j : t;
    }
    const ChainTask& task = q.tasks[t];
    const uint32_t panel = split.members == 2 ? group : group - task.first_group;
    ChainPanel e = {};
    const uint32_t row = panel * kPanelRows;
    e.data = task.data + uint64_t{panel} * task.panel_bytes;
    e.y = task.y + row;
    e.hand = task.hand == kNotHanded ? kNotHanded : task.hand + row;
    e.before = task.before == kNotHanded ? kNotHanded : task.before + row;
    e.unit_bytes = task.unit_bytes;
    e.type = static_cast<uint8_t>(task.type);
    e.stores = task.stores;
    table[base + v] = e;
  }
}

/// 1 / rms of the input, from the squares of its units.
__device__ __forceinline__ float input_norm(const ChainLaunch& p, const ChainProduct& q,
                                            const ChainView& view) {
  if (q.norm_weight == nullptr) return 1.0f;
  const FixedMap map = fixed_map(q.units);
  const auto* squares = reinterpret_cast<const float*>(view.shared + p.image + map.squares);
  float sum = 0.0f;
  for (uint32_t u = view.lane; u < q.units; u += 32) sum += squares[u];
  return rsqrtf(lanes_sum(sum) / static_cast<float>(q.n_in) + q.norm_eps);
}

/// Sum over the warps, in order, of row e of panel v of the block's part.
__device__ __forceinline__ float piece_sum(const ChainLaunch& p, const ChainView& view, uint32_t v,
                                           uint32_t e) {
  const float* part = reinterpret_cast<const float*>(view.shared + p.part) + v * kPanelRows + e;
  const uint2 range = reinterpret_cast<const uint2*>(view.shared + p.range)[v];
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t w = range.x; w <= range.y; ++w) sum += part[w * kPanelRows];
  return sum;
}

/// Where what kAdd adds to is, for output e of a panel.
__device__ __forceinline__ const float* before_of(const ChainPanel& panel, const float* handed,
                                                  uint32_t e) {
  return panel.before == kNotHanded ? panel.y + e : handed + panel.before + e;
}

/// The outputs of the block leave; `old` is what kAdd adds to in a thread's first output.
__device__ __forceinline__ void leave(const ChainLaunch& p, const ChainProduct& q,
                                      const ChainView& view, const Work& work, float norm,
                                      float scale, float old) {
  const ChainPanel* panels = panel_table(p, view.shared) + work.base;
  float* handed = handed_set(p, view);
  for (uint32_t at = threadIdx.x; at < work.n_groups * kPanelRows; at += kChainWarps * 32) {
    const uint32_t group = at / kPanelRows, e = at % kPanelRows;
    const ChainPanel& panel = panels[group];
    const float first = piece_sum(p, view, group, e) * norm;
    float y = first * scale;
    if (is_gated(q.epilogue)) {
      y = gated_value(q.epilogue, first, piece_sum(p, view, work.n_groups + group, e) * norm);
    } else if (q.epilogue == Epilogue::kAdd) {
      const float* from = before_of(panel, handed, e);
      float before = at == threadIdx.x ? old : load_fresh(from);
      while (panel.before != kNotHanded && is_missing(before)) before = load_fresh(from);
      y += before;
    }
    if (panel.hand != kNotHanded) hand_on(handed + panel.hand + e, y);
    if (panel.stores) panel.y[e] = y;
  }
}

/// Clears what the launch before handed on, for the next one.
__device__ __forceinline__ void clear_other_set(const ChainLaunch& p, const ChainView& view) {
  const ChainState state = state_of(p, view);
  float* other = p.handed + (~state.launches & 1) * kHandedFloats;
  for (uint32_t at = blockIdx.x * kChainWarps * 32 + threadIdx.x; at < state.handed / 4;
       at += gridDim.x * kChainWarps * 32)
    reinterpret_cast<float4*>(other)[at] = {};
}

/// kChainWarps warps compute, kFeeders more copy.
__global__ void __launch_bounds__((kChainWarps + kFeeders) * 32, 1)
    chain_kernel(const __grid_constant__ ChainLaunch p) {
  if constexpr (!kHasBulkCopy) return;  // the host never launches it there
  extern __shared__ __align__(128) uint8_t shared_bytes[];
  ChainView view;
  view.shared = shared_bytes;
  view.warp = threadIdx.x / 32;
  view.lane = threadIdx.x % 32;
  if (view.warp < kChainWarps && view.lane < kSlots) {
    ChainSlots& slots = slots_of(p, view);
    mbarrier_init(shared_address(&slots.full[view.warp][view.lane]), 1);
    mbarrier_init(shared_address(&slots.empty[view.warp][view.lane]), p.arrivals);
    mbarrier_init_fence();
  }
  tell_multiplies(p, view, 0);
  lay_out(p, view);
  __syncthreads();
  if (view.warp >= kChainWarps) {
    feed_rings(p, view);
    return;
  }
  Take take = {};
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

Status launch_chain(const MatmulConfig& config, const ChainStep* steps, uint32_t n_steps,
                    std::byte* sync, cudaStream_t stream, const ChainTuning& tuning) {
  if (n_steps == 0 || n_steps > kMaxChainSteps || sync == nullptr) {
    return Status::error(Code::kInternal, "chain of %u products", n_steps);
  }
  for (uint32_t k = 0; k < n_steps; ++k) {
    if (!chain_takes(config, steps[k]))
      return Status::error(Code::kInternal, "chain: product %u does not fit", k);
  }
  ChainLaunch l;
  if (!make_chain_launch(config, steps, n_steps, sync, tuning, &l))
    return Status::error(Code::kInternal, "chain: no launch for these %u products", n_steps);
  LaunchShape shape;
  shape.grid = dim3(static_cast<uint32_t>(config.n_sm));
  shape.block = dim3((kChainWarps + kFeeders) * 32);
  shape.shared_bytes = l.shared_bytes;
  shape.stream = stream;
  shape.pdl = config.pdl;
  shape.cooperative = tuning.cooperative;
  return launch_kernel("chain", shape, chain_kernel, l);
}

Status prepare_chain(int max_shared_bytes) {
  return kernel_status(
      cudaFuncSetAttribute(chain_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           max_shared_bytes),
      "chain");
}

}  // namespace sharpi::cuda
