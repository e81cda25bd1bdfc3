// SPDX-License-Identifier: MIT
// What becomes of the sums of a chain of two to four rows (chain_rows_registers.cu): rows are
// staged beside each other (chain_rows_stage.cuh), a unit is multiplied with all of them at once,
// and their outputs leave row by row. A product whose rows have no room goes in parts: consecutive
// products of the launch that read some columns each, whose sums a block keeps until the last.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/chain_parts.cuh"
#include "cuda/kernels/products/chain_rows_stage.cuh"

namespace sharpi::cuda {

/// Norms of the rows of the product under way, [row].
template <uint32_t kRows>
__device__ __forceinline__ float* norms_of(const ChainLaunch& p, const ChainView& view) {
  return reinterpret_cast<float*>(view.shared + p.sums) + kRows * kShareWarps;
}

/// Leaves the warp's piece of a panel (unit_shares.cuh): [panel + warp][row][row of the panel].
template <uint32_t kRows>
__device__ __forceinline__ void leave_rows_piece(const ChainLaunch& p, const ChainView& view,
                                                 uint32_t panel, bool first, bool last,
                                                 const RowSums<kRows>& acc) {
  leave_row_sums<kRows>(piece_at(view.shared + p.part, (panel + view.warp) * kRows),
                        static_cast<int>(view.lane), acc);
  if (view.lane == 0) mark_piece(view.shared + p.range, panel, view.warp, first, last);
}

/// Sum over the warps, in order, of output e of panel v for a row.
template <uint32_t kRows>
__device__ __forceinline__ float rows_piece_sum(const ChainLaunch& p, const ChainView& view,
                                                uint32_t v, uint32_t row, uint32_t e) {
  const float* part = piece_at(view.shared + p.part, v * kRows + row) + e;
  const uint2 range = warps_of(view.shared + p.range, v);
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t w = range.x; w <= range.y; ++w) sum += part[w * (kRows * kPanelRows)];
  return sum;
}

/// 1 / rms of the inputs, a row a warp.
template <uint32_t kRows>
__device__ __forceinline__ void keep_norms(const ChainLaunch& p, const ChainProduct& q,
                                           const ChainView& view) {
  if (q.norm_weight == nullptr || view.warp >= p.n_rows) return;
  const float* squares = StagedRows<kRows>(p, q, view).squares(view.warp, q.units);
  float sum = 0.0f;
  for (uint32_t u = view.lane; u < q.units; u += 32) sum += squares[u];
  sum = rsqrtf(lanes_sum(sum) / static_cast<float>(q.n_in) + q.norm_eps);
  if (view.lane == 0) norms_of<kRows>(p, view)[view.warp] = sum;
}

/// One of a block's outputs.
template <uint32_t kRows>
struct RowOutput {
  uint32_t group, row, e;
  explicit __device__ __forceinline__ RowOutput(uint32_t at)
      : group(at / (kPanelRows * kRows)), row(at / kPanelRows % kRows), e(at % kPanelRows) {}
  /// From where the panel says for row 0.
  __device__ __forceinline__ uint32_t offset(const ChainPanel& panel) const {
    return row * (panel.width * kPanelRows) + e;
  }
};

template <uint32_t kRows>
__device__ __forceinline__ const float* before_of(const ChainPanel& panel, const float* handed,
                                                  const RowOutput<kRows>& o) {
  return (panel.before == kNotHanded ? panel.y : handed + panel.before) + o.offset(panel);
}

/// The sums of a thread's first outputs over the columns before those under way.
struct Carried {
  float sum[kCarriedOutputs] = {};
};

/// The outputs of the block leave; `old` is what kAdd adds to in a thread's first one.
template <uint32_t kRows>
__device__ __forceinline__ void leave_rows(const ChainLaunch& p, const ChainProduct& q,
                                           const ChainView& view, const Work& work, float old,
                                           const Carried& carried) {
  const ChainPanel* panels = panel_table(p, view.shared) + work.base;
  float* handed = handed_set(p, view);
  for (uint32_t at = threadIdx.x; at < work.n_groups * (kPanelRows * kRows); at += kShareThreads) {
    const RowOutput<kRows> o(at);
    if (o.row >= p.n_rows) continue;
    const ChainPanel& panel = panels[o.group];
    const float norm = q.norm_weight == nullptr ? 1.0f : norms_of<kRows>(p, view)[o.row];
    float y = rows_piece_sum<kRows>(p, view, o.group, o.row, o.e) * norm;
#pragma unroll
    for (uint32_t i = 0; i < kCarriedOutputs; ++i)
      y += at == threadIdx.x + i * kShareThreads ? carried.sum[i] : 0.0f;
    if (q.row_scale != nullptr) y *= load_fresh(q.row_scale + o.row);
    if (is_gated_epilogue(q.epilogue)) {
      const uint32_t up = work.n_groups + o.group;
      y = gated_value(q.epilogue, y, rows_piece_sum<kRows>(p, view, up, o.row, o.e) * norm);
    } else if (q.epilogue == Epilogue::kAdd) {
      const float* from = before_of(panel, handed, o);
      float before = at == threadIdx.x ? old : load_fresh(from);
      while (panel.before != kNotHanded && is_missing(before)) before = load_fresh(from);
      y += before;
    }
    if (panel.hand != kNotHanded) hand_on(handed + panel.hand + o.offset(panel), y);
    if (panel.stores) panel.y[o.offset(panel)] = y;
  }
}

/// What a thread's first output is added to, if it is there.
template <uint32_t kRows>
__device__ __forceinline__ float first_before(const ChainLaunch& p, const ChainProduct& q,
                                              const ChainView& view, const Work& work) {
  const RowOutput<kRows> o(threadIdx.x);
  if (q.epilogue != Epilogue::kAdd || o.group >= work.n_groups || o.row >= p.n_rows) return 0.0f;
  const ChainPanel* panels = panel_table(p, view.shared) + work.base;
  return load_fresh(before_of(panels[o.group], handed_set(p, view), o));
}

template <uint32_t kRows>
__device__ __forceinline__ void carry_on(const ChainLaunch& p, const ChainView& view,
                                         const Work& work, Carried& carried) {
#pragma unroll
  for (uint32_t i = 0; i < kCarriedOutputs; ++i) {
    const RowOutput<kRows> o(threadIdx.x + i * kShareThreads);
    if (o.group < work.n_groups)
      carried.sum[i] += rows_piece_sum<kRows>(p, view, o.group, o.row, o.e);
  }
}

}  // namespace sharpi::cuda
