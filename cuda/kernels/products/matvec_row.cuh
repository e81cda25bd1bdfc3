// SPDX-License-Identifier: MIT
// A block of matvec_row.cu: what its shared memory holds, the rings of its warps, and how the row
// gets in.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/fixed_product.cuh"
#include "cuda/kernels/products/matvec_plan.h"
#include "cuda/kernels/products/stream.cuh"
#include "cuda/kernels/products/unit_shares.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda::matvec {

/// The block's and the lane's view of the launch.
struct RowView {
  uint8_t* shared;
  RowMap map;
  FixedMap fixed;  // of the staged row
  uint32_t warp, lane;

  __device__ __forceinline__ RowPanel* panels() const {
    return reinterpret_cast<RowPanel*>(shared + map.panels);
  }
  /// The first and the last warp that have pieces of a panel.
  __device__ __forceinline__ uint2* warps() const {
    return reinterpret_cast<uint2*>(shared + map.warps);
  }
  __device__ __forceinline__ float* sums() const {
    return reinterpret_cast<float*>(shared + map.sums);
  }
  /// [panel][output], times the expert's weight.
  __device__ __forceinline__ float* biases() const {
    return reinterpret_cast<float*>(shared + map.biases);
  }
};

/// What another launch, or the host, may have written while this kernel's code was on its way: not
/// what a multiprocessor remembers of it.
template <class T>
__device__ __forceinline__ T load_current(const T* from) {
  static_assert(sizeof(T) == 4);
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return reinterpret_cast<const T&>(v);
}

/// Panel v of a block that owns groups [first, first + n_groups): all gates then all ups; all
/// panels of the first expert, then of the second, ...
template <bool kMoe>
__device__ __forceinline__ RowPanel make_panel(const StreamParams& p, uint32_t first,
                                               uint32_t n_groups, uint32_t v) {
  const bool gated = is_gated_epilogue(p.epilogue);
  const uint32_t member = v / n_groups;
  uint32_t in_task = first + v - member * n_groups, t = 0, j = 0;
  if (kMoe && p.mode == StreamMode::kExpertsUp) {
    j = divide(in_task, p.by_panels);
    in_task -= j * p.by_panels.divisor;
  } else if (kMoe) {
    j = member;
  } else if (!gated) {
#pragma unroll
    for (uint32_t k = 1; k < kMaxMatmulTasks; ++k) {
      if (k < p.n_tasks && in_task >= p.tasks[k].first_group) t = k;
    }
    in_task -= p.tasks[t].first_group;
  }
  if (gated) t = member;
  const StreamTask& task = p.tasks[t];
  RowPanel panel;
  panel.data = task.data + uint64_t{in_task} * task.panel_bytes;
  panel.y = task.y + in_task * kPanelRows;
  panel.bias = task.bias;
  panel.weight = 1.0f;
  if constexpr (kMoe) {
    const uint32_t entry = blockIdx.y * p.n_used + j;
    const bool down = p.mode == StreamMode::kExpertsDown;
    const int32_t id = load_current(p.ids + entry);
    const float weight = down ? load_current(p.weights + entry) : 1.0f;
    const int32_t slot =
        p.slot_of_expert == nullptr || id < 0 ? id : load_current(p.slot_of_expert + id);
    panel.data += static_cast<uint64_t>(max(slot, 0)) * task.expert_bytes;
    panel.y += (down ? blockIdx.y : entry) * task.y_stride;
    if (panel.bias != nullptr) panel.bias += static_cast<uint64_t>(max(id, 0)) * task.n_out;
    if (down) panel.weight = slot < 0 ? 0.0f : weight;
  }
  if (panel.bias != nullptr) panel.bias += in_task * kPanelRows;
  panel.unit_bytes = task.unit_bytes;
  panel.tail_bytes = task.tail_bytes;
  panel.first_unit = kMoe && !gated ? member * p.units : 0;
  panel.type = task.type;
  return panel;
}

/// What is added to output i % 16 of panel i / 16.
__device__ __forceinline__ float bias_of(const RowView& view, uint32_t i) {
  const RowPanel& panel = view.panels()[i / kPanelRows];
  return panel.bias == nullptr ? 0.0f : panel.weight * panel.bias[i % kPanelRows];
}

/// The warp's ring of units, and where its copies are.
struct RowRing {
  uint32_t base, barriers;  // shared addresses
  uint32_t stage, parity;   // of the next unit to use; copies go where units were used
  const uint8_t* next;
  uint32_t panel, in_panel, left;  // units left in the panel and altogether

  /// All lanes, before the block's first barrier.
  __device__ __forceinline__ RowRing(const StreamParams& p, const RowView& view) {
    const uint32_t shared = shared_address(view.shared);
    base = shared + view.warp * p.n_stages * p.stage_bytes;
    barriers = shared + view.map.barriers + view.warp * p.n_stages * 8;
    stage = parity = panel = in_panel = left = 0;
    next = nullptr;
    if constexpr (kHasBulkCopy) {
      if (view.lane != 0) return;
      for (uint32_t s = 0; s < p.n_stages; ++s) mbarrier_init(barriers + s * 8, 1);
      mbarrier_init_fence();
    }
  }
  /// Starts the first copies.
  __device__ __forceinline__ void fill(const StreamParams& p, const RowView& view,
                                       const Position& at) {
    if (at.left != 0) {
      panel = at.v;
      in_panel = p.units - at.u;
      left = at.left;
      const RowPanel& first = view.panels()[at.v];
      next = first.data + at.u * first.unit_bytes;
    }
#pragma unroll 1
    for (uint32_t s = 0; s < p.n_stages; ++s) issue(p, view, s);
  }
  /// Starts the copy of the next unit, if there is one, into stage `to`.
  __device__ __forceinline__ void issue(const StreamParams& p, const RowView& view, uint32_t to) {
    if (left != 0) {
      if (in_panel == 0) {
        ++panel;
        in_panel = p.units;
        next = view.panels()[panel].data;
      }
      const RowPanel& of = view.panels()[panel];
      const uint32_t bytes = in_panel == 1 ? of.tail_bytes : of.unit_bytes,
                     at = base + to * p.stage_bytes;
      if constexpr (kHasBulkCopy) {
        if (view.lane == 0) {
          mbarrier_expect(barriers + to * 8, bytes);
          bulk_copy(at, next, bytes, barriers + to * 8);
        }
      } else {
        for (uint32_t i = view.lane * 16; i < bytes; i += 512) cp_async_16(at + i, next + i);
      }
      next += bytes;
      --in_panel;
      --left;
    }
    if constexpr (!kHasBulkCopy) cp_async_commit();
  }
  /// Waits for the next unit; returns its stage.
  __device__ __forceinline__ uint32_t wait(uint32_t stages) {
    if constexpr (kHasBulkCopy) {
      mbarrier_wait(barriers + stage * 8, parity);
    } else {
      if (stages == 2) cp_async_wait<1>();
      if (stages == 3) cp_async_wait<2>();
      if (stages == 4) cp_async_wait<3>();
      __syncwarp();
    }
    const uint32_t now = stage;
    if (++stage == stages) {
      stage = 0;
      parity ^= 1u;
    }
    return now;
  }
};

/// A warp's share of the row: units warp, warp + n_warps, ... The loads of kBatch are in flight at
/// once, because with the memory busy each takes long.
template <int kBatch>
struct RowShare {
  static constexpr int kWeights = 2;
  LaneInputs x[kBatch], w[kWeights];  // w: of the norm
  uint32_t u;                         // unit of x[0]

  static __device__ __forceinline__ LaneInputs weights_of(const StreamParams& p, uint32_t unit,
                                                          uint32_t lane) {
    if (p.norm_weight == nullptr || unit >= p.units) return {};
    return load_inputs(p.norm_weight, unit * kUnitColumns + lane * 4, p.n_in);
  }
  template <bool kMoe>
  static __device__ __forceinline__ LaneInputs inputs_of(const StreamParams& p, uint32_t unit,
                                                         uint32_t lane) {
    if (unit >= p.units * (kMoe ? p.n_segments : 1)) return {};
    const uint32_t segment = kMoe ? divide(unit, p.by_units) : 0;
    return load_inputs(input_row(p, 0) + segment * p.n_in,
                       (unit - segment * p.units) * kUnitColumns + lane * 4, p.n_in);
  }
  /// What does not depend on earlier launches: rows with a norm are one segment.
  __device__ __forceinline__ void load_weights(const StreamParams& p, const RowView& view) {
    u = view.warp;
#pragma unroll
    for (int k = 0; k < kWeights; ++k) w[k] = weights_of(p, u + k * p.n_warps, view.lane);
  }
  template <bool kMoe>
  __device__ __forceinline__ void load_inputs_ahead(const StreamParams& p, const RowView& view) {
#pragma unroll
    for (int k = 0; k < kBatch; ++k) x[k] = inputs_of<kMoe>(p, u + k * p.n_warps, view.lane);
  }
  template <bool kMoe>
  __device__ __forceinline__ void stage(const StreamParams& p, const RowView& view,
                                        uint32_t n_groups) {
    uint8_t* image = view.shared + view.map.image;
    const uint32_t n = p.units * (kMoe ? p.n_segments : 1);
#pragma unroll 1
    for (; u < n; u += p.n_warps) {
      if (p.norm_weight != nullptr) {
        const float squares = lanes_sum(squares_of(x[0].v[0]) + squares_of(x[0].v[1]));
        if (view.lane == 0) *reinterpret_cast<float*>(image + view.fixed.squares + u * 4) = squares;
        scale_by(x[0], w[0]);
      } else if (kMoe && p.mode == StreamMode::kExpertsDown) {
        const float f = view.panels()[divide(u, p.by_units) * n_groups].weight;
        scale_by(x[0], {{{f, f, f, f}, {f, f, f, f}}});
      }
      stage_fixed(image, view.fixed, u, x[0], view.lane);
#pragma unroll
      for (int k = 1; k < kBatch; ++k) x[k - 1] = x[k];
      w[0] = w[1];
      x[kBatch - 1] = inputs_of<kMoe>(p, u + kBatch * p.n_warps, view.lane);
      w[kWeights - 1] = weights_of(p, u + kWeights * p.n_warps, view.lane);
    }
  }
};

}  // namespace sharpi::cuda::matvec
