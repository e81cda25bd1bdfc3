// SPDX-License-Identifier: MIT
// How rows of a chain of several get into shared memory: taken from those who hand them on, with
// the branch of an earlier product added, normed and in fixed point. Every block has all rows.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/chain_stage.cuh"
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
  /// Unit u of all rows.
  __device__ __forceinline__ RowInputs<kRows> unit(uint32_t u) const {
    return {image + u * (512 * kRows),
            reinterpret_cast<const float*>(image + map.sums) + u * (8 * kRows),
            reinterpret_cast<const float*>(image + map.inverse) + u * kRows};
  }
};

/// The same while they are staged.
template <uint32_t kRows>
struct StagingRows : StagedRows<kRows> {
  bool sums;

  __device__ __forceinline__ StagingRows(const ChainLaunch& p, uint32_t k, const ChainView& view)
      : StagedRows<kRows>(p, p.products[k], view), sums(p.columns[k].sums) {}
  __device__ __forceinline__ void stage(uint32_t row, uint32_t u, const LaneInputs& in,
                                        uint32_t lane) const {
    stage_fixed<kRows>(this->image, this->map, u, in, lane, row, sums);
  }
  /// The sum of a unit's squares, for the norm's factor, which the product's sums are multiplied
  /// by.
  __device__ __forceinline__ void keep_squares(uint32_t row, uint32_t u, uint32_t units,
                                               const LaneInputs& in, uint32_t lane) const {
    const float sum = lanes_sum(squares_of(in.v[0]) + squares_of(in.v[1]));
    if (lane != 0) return;
    const uint32_t at = this->map.squares + (row * units + u) * 4;
    *reinterpret_cast<float*>(this->image + at) = sum;
  }
};

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

/// The same of a row and of the branch that is added to it, all under way at once.
template <uint32_t kUnits>
__device__ __forceinline__ void fetch_both(const RowView& row, const RowView& branch,
                                           const uint32_t (&at)[kUnits], uint32_t lane,
                                           LaneInputs (&x)[kUnits], LaneInputs (&y)[kUnits]) {
#pragma unroll
  for (uint32_t i = 0; i < kUnits; ++i) x[i] = y[i] = {};
  bool again;
  do {
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
#pragma unroll
      for (uint32_t h = 0; h < 2; ++h) {
        if (at[i] == kNowhere) continue;
        const uint32_t from = at[i] + lane * 4 + h * 128;
        if (is_missing(y[i].v[h])) y[i].v[h] = load_fresh_4(branch.data + from);
        if (is_missing(x[i].v[h])) x[i].v[h] = load_fresh_4(row.data + from);
      }
    }
    again = false;
#pragma unroll
    for (uint32_t i = 0; i < kUnits; ++i) {
      if (at[i] == kNowhere) continue;
      again = again || (branch.handed && (is_missing(y[i].v[0]) || is_missing(y[i].v[1]))) ||
              (row.handed && (is_missing(x[i].v[0]) || is_missing(x[i].v[1])));
    }
  } while (__any_sync(~0u, again));
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
  const StagingRows<kRows> staged(p, k, view);
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
        staged.keep_squares(now.row, now.u, q.units, x[0], view.lane);
        scale_by(x[0], w);
        w = weights_of(q.norm_weight, q, it.u, view.lane);
      }
      staged.stage(now.row, now.u, x[0], view.lane);
#pragma unroll
      for (uint32_t j = 0; j + 1 < kStagedUnits; ++j) x[j] = x[j + 1];
    }
  }
}

/// Sums of the warps' squares of the rows' branches, [row][warp].
__device__ __forceinline__ float* branch_squares(const ChainLaunch& p, const ChainView& view) {
  return reinterpret_cast<float*>(view.shared + p.sums);
}
/// Unit u of kCount rows, from `first` on, as offsets of fetch_at().
template <uint32_t kCount>
struct UnitOfRows {
  uint32_t at[kCount];
  __device__ __forceinline__ UnitOfRows(const ChainLaunch& p, const ChainProduct& q, uint32_t u,
                                        uint32_t first) {
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i) {
      const uint32_t row = first + i;
      at[i] = row < p.n_rows && u < q.units ? row * q.n_in + u * kUnitColumns : kNowhere;
    }
  }
};

/// The squares of the branches of kHeld rows, from `first` on, whose first units of the warp are y;
/// a warp has one or two units of a row, and adds them up as chain_stage.cuh does.
template <uint32_t kHeld>
__device__ __forceinline__ void sum_branches(const ChainLaunch& p, const ChainProduct& q,
                                             const RowView& branch, const ChainView& view,
                                             uint32_t first, const LaneInputs (&y)[kHeld]) {
  static_assert(kBranchUnits == 2);
  float squares[kHeld];
#pragma unroll
  for (uint32_t i = 0; i < kHeld; ++i) squares[i] = squares_of(y[i].v[0]) + squares_of(y[i].v[1]);
  if (view.warp + kShareWarps < q.units) {
    const UnitOfRows<kHeld> second(p, q, view.warp + kShareWarps, first);
    LaneInputs z[kHeld];
    fetch_at<kHeld>(branch, second.at, view.lane, z);
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i)
      squares[i] += squares_of(z[i].v[0]) + squares_of(z[i].v[1]);
  }
#pragma unroll
  for (uint32_t i = 0; i < kHeld; ++i) {
    const float sum = lanes_sum(squares[i]);
    if (view.lane == 0) branch_squares(p, view)[(first + i) * kShareWarps + view.warp] = sum;
  }
}

/// Rows with the branch of an earlier product added; every block computes all of them, and leaves
/// every n-th unit. What a warp asks for first, a unit of two rows, stays in registers until the
/// warps have met; there are none for more.
template <uint32_t kRows>
__device__ __forceinline__ void stage_branches(const ChainLaunch& p, uint32_t k,
                                               const ChainView& view) {
  constexpr uint32_t kHeld = 2;
  static_assert(kRows % kHeld == 0);
  using Units = UnitOfRows<kHeld>;
  const ChainProduct& q = p.products[k];
  const StagingRows<kRows> staged(p, k, view);
  const RowView rows = row_view(p, view, q.x), branch = row_view(p, view, q.branch);
  const bool norm = q.branch_weight != nullptr;
  LaneInputs x[kHeld], y[kHeld];
  fetch_both<kHeld>(rows, branch, Units(p, q, view.warp, 0).at, view.lane, x, y);
  if (norm) {
    sum_branches<kHeld>(p, q, branch, view, 0, y);
#pragma unroll 1
    for (uint32_t row = kHeld; row < kRows; row += kHeld) {
      LaneInputs z[kHeld];
      fetch_at<kHeld>(branch, Units(p, q, view.warp, row).at, view.lane, z);
      sum_branches<kHeld>(p, q, branch, view, row, z);
    }
    meet();
  }
#pragma unroll 1
  for (uint32_t i = 0; view.warp + i / (kRows / kHeld) * kShareWarps < q.units; ++i) {
    const uint32_t u = view.warp + i / (kRows / kHeld) * kShareWarps,
                   first = i % (kRows / kHeld) * kHeld;
    if (i != 0) fetch_both<kHeld>(rows, branch, Units(p, q, u, first).at, view.lane, x, y);
    const LaneInputs w = weights_of(q.branch_weight, q, u, view.lane),
                     v = weights_of(q.norm_weight, q, u, view.lane);
#pragma unroll 1
    for (uint32_t row = first; row < first + kHeld; ++row) {
      if (row >= p.n_rows) break;
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
        staged.keep_squares(row, u, q.units, x[0], view.lane);
        scale_by(x[0], v);
      }
      staged.stage(row, u, x[0], view.lane);
#pragma unroll
      for (uint32_t i = 0; i + 1 < kHeld; ++i) x[i] = x[i + 1], y[i] = y[i + 1];
    }
  }
}

}  // namespace sharpi::cuda
