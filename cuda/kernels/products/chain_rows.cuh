// SPDX-License-Identifier: MIT
// What both forms of a chain of two to four rows do (chain_rows.cu, chain_rows_registers.cu): rows
// are staged beside each other, a unit is multiplied with all of them at once, and their outputs
// leave row by row. A product whose rows have no room goes in parts: consecutive products of the
// launch that read some columns each, whose sums a block keeps until the last.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/chain_parts.cuh"
#include "cuda/kernels/products/fixed_rows.cuh"

namespace sharpi::cuda {

constexpr uint32_t kNowhere = ~0u;

/// The staged rows, as fixed_rows.cuh reads them.
template <uint32_t kRows>
struct StagedRows {
  static_assert(kRows <= kMaxChainRows, "one product of tensor cores takes all rows");
  uint8_t* image;
  FixedMap map;

  __device__ __forceinline__ StagedRows(const ChainLaunch& p, const ChainProduct& q,
                                        const ChainView& view)
      : image(view.shared + p.image), map(fixed_map(q.units * kRows)) {}
  /// Squares of a row's units.
  __device__ __forceinline__ float* squares(uint32_t row, uint32_t units) const {
    return reinterpret_cast<float*>(image + map.squares) + row * units;
  }
  __device__ __forceinline__ void stage(uint32_t row, uint32_t u, const LaneInputs& in,
                                        uint32_t lane, bool with_sums) const {
    stage_fixed<kRows>(image, map, u, in, lane, row, with_sums);
  }
  /// Unit u of all rows.
  __device__ __forceinline__ RowInputs unit(uint32_t u) const {
    return {image + u * (512 * kRows),
            reinterpret_cast<const float*>(image + map.sums) + u * (8 * kRows),
            reinterpret_cast<const float*>(image + map.inverse) + u * kRows};
  }
};

/// For the norm's factor, which the product's sums are multiplied by.
__device__ __forceinline__ void keep_squares(float* to, const LaneInputs& in, uint32_t lane) {
  const float sum = lanes_sum(squares_of(in.v[0]) + squares_of(in.v[1]));
  if (lane == 0) *to = sum;
}

/// The lane's inputs of the units at `at` (floats from the row's beginning), zeros for kNowhere.
/// What has not come yet is asked for again, until all of it is there.
template <uint32_t kUnits>
__device__ __forceinline__ void fetch_at(const RowView& row, const uint32_t (&at)[kUnits],
                                         uint32_t lane, LaneInputs (&in)[kUnits]) {
#pragma unroll
  for (uint32_t i = 0; i < kUnits; ++i) in[i] = {};
  bool again;
  do {
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        if (at[i] != kNowhere && is_missing(in[i].v[h]))
          in[i].v[h] = load_fresh_4(row.data + at[i] + lane * 4 + h * 128);
      }
    }
    again = false;
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      if (at[i] != kNowhere) again = again || is_missing(in[i].v[0]) || is_missing(in[i].v[1]);
    }
  } while (__any_sync(~0u, row.handed && again));
}

/// A unit of one of the rows; a warp has every kShareWarps-th, row after row.
struct UnitOfRow {
  uint32_t row, u;
  __device__ __forceinline__ void settle(uint32_t units) {
    while (u >= units) {
      u -= units;
      ++row;
    }
  }
  __device__ __forceinline__ void next(uint32_t units) {
    u += kShareWarps;
    settle(units);
  }
};

/// Stages rows; kStagedUnits of a warp's units are under way at once.
template <uint32_t kRows>
__device__ __forceinline__ void stage_rows(const ChainLaunch& p, uint32_t k,
                                           const ChainView& view) {
  const ChainProduct& q = p.products[k];
  const ChainColumns& columns = p.columns[k];
  const StagedRows<kRows> staged(p, q, view);
  const bool norm = q.norm_weight != nullptr;
  const RowView rows = row_view(p, view, q.x);
  UnitOfRow it = {0, view.warp};
  it.settle(q.units);
#pragma unroll 1
  while (it.row < p.n_rows) {
    LaneInputs w = weights_of(q.norm_weight, q, it.u, view.lane), x[kStagedUnits];
    uint32_t at[kStagedUnits];
    UnitOfRow ahead = it;
#pragma unroll
    for (uint32_t i = 0; i < kStagedUnits; ++i) {
      at[i] = ahead.row < p.n_rows ? ahead.row * columns.stride + ahead.u * kUnitColumns : kNowhere;
      ahead.next(q.units);
    }
    fetch_at<kStagedUnits>(rows, at, view.lane, x);
#pragma unroll 1
    for (uint32_t i = 0; i < kStagedUnits && it.row < p.n_rows; ++i) {
      const UnitOfRow now = it;
      it.next(q.units);
      if (norm) {
        keep_squares(staged.squares(now.row, q.units) + now.u, x[0], view.lane);
        scale_by(x[0], w);
        w = weights_of(q.norm_weight, q, it.u, view.lane);
      }
      staged.stage(now.row, now.u, x[0], view.lane, columns.sums);
#pragma unroll
      for (uint32_t j = 0; j + 1 < kStagedUnits; ++j) x[j] = x[j + 1];
    }
  }
}

/// Sums of the warps' squares of the rows' branches, [row][warp].
__device__ __forceinline__ float* branch_squares(const ChainLaunch& p, const ChainView& view) {
  return reinterpret_cast<float*>(view.shared + p.sums);
}
/// Norms of the rows of the product under way, [row].
template <uint32_t kRows>
__device__ __forceinline__ float* norms_of(const ChainLaunch& p, const ChainView& view) {
  return reinterpret_cast<float*>(view.shared + p.sums) + kRows * kShareWarps;
}

/// The squares of the branches of all rows; a warp has `each` (one or two) units of a row, as
/// chain_stage.cuh adds them up.
__device__ __forceinline__ void sum_branches(const ChainLaunch& p, const ChainProduct& q,
                                             const RowView& branch, const ChainView& view) {
  static_assert(kBranchUnits == 2 && kStagedUnits % kBranchUnits == 0);
  const uint32_t each = (q.units + kShareWarps - 1) / kShareWarps, n = p.n_rows * each;
#pragma unroll 1
  for (uint32_t first = 0; first < n; first += kStagedUnits) {
    uint32_t at[kStagedUnits];
    LaneInputs y[kStagedUnits];
#pragma unroll
    for (uint32_t i = 0; i < kStagedUnits; ++i) {
      const uint32_t item = first + i, row = item / each, u = view.warp + item % each * kShareWarps;
      at[i] = item < n && u < q.units ? row * q.n_in + u * kUnitColumns : kNowhere;
    }
    fetch_at<kStagedUnits>(branch, at, view.lane, y);
    float squares[kStagedUnits];
#pragma unroll
    for (uint32_t i = 0; i < kStagedUnits; ++i)
      squares[i] = squares_of(y[i].v[0]) + squares_of(y[i].v[1]);
#pragma unroll
    for (uint32_t i = 0; i < kStagedUnits; ++i) {
      if (each == 2 && i % 2 != 0) continue;
      const float sum = lanes_sum(each == 2 ? squares[i] + squares[i + 1 - i % 2] : squares[i]);
      if (view.lane == 0 && first + i < n)
        branch_squares(p, view)[(first + i) / each * kShareWarps + view.warp] = sum;
    }
  }
}

/// Rows with the branch of an earlier product added; every block computes all of them, and stores
/// every n-th unit.
template <uint32_t kRows>
__device__ __forceinline__ void stage_branches(const ChainLaunch& p, uint32_t k,
                                               const ChainView& view) {
  const ChainProduct& q = p.products[k];
  const StagedRows<kRows> staged(p, q, view);
  const RowView rows = row_view(p, view, q.x), branch = row_view(p, view, q.branch);
  const bool norm = q.branch_weight != nullptr;
  if (norm) {
    sum_branches(p, q, branch, view);
    meet();
  }
#pragma unroll 1
  for (uint32_t u = view.warp; u < q.units; u += kShareWarps) {
    const LaneInputs w = weights_of(q.branch_weight, q, u, view.lane),
                     v = weights_of(q.norm_weight, q, u, view.lane);
#pragma unroll 1
    for (uint32_t first = 0; first < p.n_rows; first += 2) {
      const uint32_t from = first * q.n_in + u * kUnitColumns;
      const uint32_t at[2] = {from, first + 1 < p.n_rows ? from + q.n_in : kNowhere};
      LaneInputs x[2], y[2];
      fetch_at<2>(rows, at, view.lane, x);
      fetch_at<2>(branch, at, view.lane, y);
#pragma unroll 1
      for (uint32_t row = first; row < min(first + 2, p.n_rows); ++row) {
        float factor = 1.0f;
        if (norm) {
          const float* squares = branch_squares(p, view) + row * kShareWarps;
          const float sum = lanes_sum(view.lane < kShareWarps ? squares[view.lane] : 0.0f);
          factor = rsqrtf(sum / static_cast<float>(q.n_in) + q.branch_eps);
          scale_by(y[0], w);
        }
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float4 a = x[0].v[i], b = y[0].v[i];
          const float s = q.branch_scale;
          x[0].v[i] = {fmaf(b.x, factor, a.x) * s, fmaf(b.y, factor, a.y) * s,
                       fmaf(b.z, factor, a.z) * s, fmaf(b.w, factor, a.w) * s};
        }
        const uint32_t of_all = row * q.units + u;
        if (of_all % gridDim.x == blockIdx.x) store_sum(p, q, view, of_all, x[0]);
        if (q.norm_weight != nullptr) {
          keep_squares(staged.squares(row, q.units) + u, x[0], view.lane);
          scale_by(x[0], v);
        }
        staged.stage(row, u, x[0], view.lane, p.columns[k].sums);
        x[0] = x[1];
        y[0] = y[1];
      }
    }
  }
}

/// Leaves the warp's piece of a panel (unit_shares.cuh): [panel + warp][row][row of the panel].
template <uint32_t kRows>
__device__ __forceinline__ void leave_rows_piece(const ChainLaunch& p, const ChainView& view,
                                                 uint32_t panel, bool first, bool last,
                                                 const RowSums<kRows>& acc) {
  float* to = piece_at(view.shared + p.part, (panel + view.warp) * kRows) + view.lane / 4;
  float sum[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // In the order of one row's lanes.
    if constexpr (kRows == 4) {
      sum[h] = (acc.part[h][0] + acc.part[h][1]) + (acc.part[h][2] + acc.part[h][3]);
    } else {
      const float a = acc.part[h][0] + __shfl_xor_sync(~0u, acc.part[h][0], 2),
                  b = acc.part[h][1] + __shfl_xor_sync(~0u, acc.part[h][1], 2);
      sum[h] = a + b;
    }
  }
  const uint32_t row = view.lane % 4;
  if (row < kRows) {
    to[row * kPanelRows] = sum[0];
    to[row * kPanelRows + 8] = sum[1];
  }
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
    if (is_gated(q.epilogue)) {
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

/// All products of a launch; `units` says where a warp's units of weights come from.
template <uint32_t kRows, class Units>
__device__ __forceinline__ void multiply_rows(const ChainLaunch& p, const ChainView& view,
                                              Units& units) {
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

}  // namespace sharpi::cuda
