// SPDX-License-Identifier: MIT
// What both forms of a chain's kernel do (chain.cu, chain_registers.cu): how a block's part of the
// products is laid out, and what becomes of the sums of its units.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/chain_stage.cuh"
#include "cuda/kernels/products/stream.cuh"
#include "cuda/kernels/products/weight_types.h"

namespace sharpi::cuda {

/// f.operator()<type>() of a panel's type: one copy of f for each type.
template <class F>
__device__ __forceinline__ void with_chain_type(uint8_t type, const F& f) {
  static_assert(kBranchIsWhole<FixedTypes, GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K,
                               GgmlType::kQ5_K, GgmlType::kQ6_K>);
  switch (static_cast<GgmlType>(type)) {
    case GgmlType::kQ8_0:
      f.template operator()<GgmlType::kQ8_0>();
      break;
    case GgmlType::kQ4_0:
      f.template operator()<GgmlType::kQ4_0>();
      break;
    case GgmlType::kQ4_K:
      f.template operator()<GgmlType::kQ4_K>();
      break;
    case GgmlType::kQ5_K:
      f.template operator()<GgmlType::kQ5_K>();
      break;
    default:
      f.template operator()<GgmlType::kQ6_K>();
      break;
  }
}

struct Position {
  uint32_t v, u, left;  // unit u of panel v of the block's part; units to go
};

/// Where the warp's units of product k begin.
__device__ __forceinline__ Position first_of(const ChainLaunch& p, const ChainView& view,
                                             uint32_t k) {
  const uint32_t units = p.products[k].units;
  const Share s = share_of(work_of(p, view.shared, k).n_panels * units, view.warp);
  const uint32_t v = s.first / units;
  return {v, s.first - v * units, s.count};
}

/// Asks for the warp's first unit of product k.
__device__ __forceinline__ void ask_ahead(const ChainLaunch& p, const ChainView& view, uint32_t k,
                                          HeldUnit& held) {
  const Position at = first_of(p, view, k);
  if (at.left == 0) return;
  const ChainPanel& panel = panel_table(p, view.shared)[work_of(p, view.shared, k).base + at.v];
  const uint8_t* unit = panel.data + at.u * panel.unit_bytes;
  with_chain_type(panel.type, [&]<GgmlType kType>() {
    hold_unit<kType>(unit, static_cast<int>(view.lane), held);
  });
}

/// Leaves the warp's piece of panel v.
__device__ __forceinline__ void leave_piece(const ChainLaunch& p, const ChainView& view, uint32_t v,
                                            bool first, bool last, const FixedSums& acc) {
  const float sum[2] = {row_sum(acc.part[0]), row_sum(acc.part[1])};
  float* part = piece_at(view.shared + p.part, v + view.warp);
  if (view.lane % 4 == 0) {
    part[view.lane / 4] = sum[0];
    part[view.lane / 4 + 8] = sum[1];
  }
  if (view.lane == 0) mark_piece(view.shared + p.range, v, view.warp, first, last);
}

/// The block's part of each product, and the table of its panels: a product each warp.
template <bool kSeveralRows = false>
__device__ __forceinline__ void lay_out(const ChainLaunch& p, const ChainView& view) {
  if (view.warp >= p.n_products) return;
  const auto rotated_by = [&](const ChainSplit& s) {
    const uint32_t rotated = blockIdx.x + gridDim.x - s.first;
    return rotated >= gridDim.x ? rotated - gridDim.x : rotated;
  };
  uint32_t base = 0;
  for (uint32_t k = 0; k < view.warp; ++k) {
    const ChainSplit& s = p.splits[k];
    base += (s.groups + (rotated_by(s) < s.more ? 1 : 0)) * s.members;
  }
  const ChainSplit& split = p.splits[view.warp];
  const ChainProduct& q = p.products[view.warp];
  const uint32_t rotated = rotated_by(split);
  const uint32_t n = split.groups + (rotated < split.more ? 1 : 0), n_panels = n * split.members;
  const uint32_t first = rotated * split.groups + min(rotated, split.more);
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
    if constexpr (kSeveralRows) e.width = task.width;
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
  const uint2 range = warps_of(view.shared + p.range, v);
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
  for (uint32_t at = threadIdx.x; at < work.n_groups * kPanelRows; at += kShareThreads) {
    const uint32_t group = at / kPanelRows, e = at % kPanelRows;
    const ChainPanel& panel = panels[group];
    const float first = piece_sum(p, view, group, e) * norm;
    float y = first * scale;
    if (is_gated_epilogue(q.epilogue)) {
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
  for (uint32_t at = blockIdx.x * kShareThreads + threadIdx.x; at < state.handed / 4;
       at += gridDim.x * kShareThreads)
    reinterpret_cast<float4*>(other)[at] = {};
}

}  // namespace sharpi::cuda
