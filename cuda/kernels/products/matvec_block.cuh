// SPDX-License-Identifier: MIT
// A block of matvec.cu: what its shared memory holds, and the rings of its warps.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/matvec.h"
#include "cuda/kernels/products/matvec_plan.h"
#include "cuda/kernels/products/stage.cuh"
#include "cuda/kernels/products/stream.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda::matvec {

/// Where a warp's copies are. In shared memory: registers are for the arithmetic.
struct alignas(16) Ahead {
  const uint8_t* next;
  uint32_t in_panel, left;  // units left in the panel and altogether
  const Panel* panel;
  uint32_t part, in_part;  // of several rows: the part of the columns, and units left in it
};

/// The warp's ring of units.
struct Ring {
  uint32_t base, barriers;  // shared addresses
  Ahead* ahead;
  uint32_t stage, parity;  // of the next unit to use; copies go where units were used

  /// Starts the copy of the next unit, if there is one, into stage `to`. The last units of panels
  /// that the last part lacks are passed over.
  __device__ __forceinline__ void issue(const StreamParams& p, const Panel* panels, uint32_t to,
                                        uint32_t warp, uint32_t lane) {
    if constexpr (kHasBulkCopy) {
      if (lane != 0) return;
    }
    const uint4 state = *reinterpret_cast<const uint4*>(ahead);
    const uint8_t* next = ahead->next;
    uint32_t in_panel = state.z, left = state.w;
    if constexpr (!kHasBulkCopy) __syncwarp();
    if (left != 0) {
      const Panel* panel = ahead->panel;
      uint32_t in_part = ahead->in_part;
      if (in_part == 0 || in_panel <= p.n_absent) {
        uint32_t part = ahead->part;
        if (in_part == 0) {
          const Position at = first_position(p, warp);
          ++part;
          panel = panels + at.v;
          in_panel = p.units - at.u;
          in_part = at.left;
        } else if (in_panel == 0) {
          ++panel;
          in_panel = p.units;
        }
        if (part + 1 == p.n_parts && in_panel <= p.n_absent) {
          const uint32_t n_skipped = min(in_panel, left);
          left -= n_skipped;
          in_part -= n_skipped;
          panel += left == 0 ? 0 : 1;
          in_panel = p.units;
        }
        next = panel->data + (part * p.units + p.units - in_panel) * panel->unit_bytes;
        if constexpr (!kHasBulkCopy) __syncwarp();
        if (lane == 0) {
          ahead->panel = panel;
          ahead->part = part;
          ahead->left = left;
        }
      }
      if (left != 0) {
        const uint32_t bytes = in_panel == 1 ? panel->tail_bytes : panel->unit_bytes;
        const uint32_t at = base + to * p.stage_bytes;
        if constexpr (kHasBulkCopy) {
          mbarrier_expect(barriers + to * 8, bytes);
          bulk_copy(at, next, bytes, barriers + to * 8);
        } else {
          for (uint32_t i = lane * 16; i < bytes; i += 512) cp_async_16(at + i, next + i);
          __syncwarp();
        }
        if (lane == 0) {
          ahead->next = next + bytes;
          ahead->in_panel = in_panel - 1;
          ahead->left = left - 1;
          ahead->in_part = in_part - 1;
        }
      }
    }
    if constexpr (!kHasBulkCopy) {
      cp_async_commit();
      __syncwarp();
    }
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

/// The block's and the lane's view of the launch.
struct View {
  uint8_t* shared;
  SharedMap map;
  ImageMap image;
  uint32_t warp, lane;
};

/// The first copies of a warp, one lane each, and the state that the later ones start from. None of
/// them is of a part that is shorter than the first (matvec_plan.cc).
__device__ __forceinline__ void fill_ring(const StreamParams& p, const View& view, Ring& ring,
                                          const Position& at) {
  const auto* panels = reinterpret_cast<const Panel*>(view.shared + view.map.panels);
  const uint32_t v = at.v, first = at.v * p.units + at.u;
  const uint32_t all = at.left * p.n_parts, now = min(all, p.n_stages);
  // Lane k < n_stages: unit k of the warp; lane n_stages: where issue() goes on.
  const uint32_t k = min(view.lane, now), part = at.left == 0 ? 0 : k / at.left,
                 in_part = k - part * at.left;
  const uint32_t n = first + in_part, to = divide(n, p.by_units), u = n - to * p.units;
  // A warp without units has no panel: it looks at the first, for nothing.
  const Panel& panel = panels[at.left == 0 ? 0 : view.lane < now || all > now ? to : v];
  const uint8_t* next = panel.data + (part * p.units + u) * panel.unit_bytes;
  const uint32_t bytes = u + 1 == p.units ? panel.tail_bytes : panel.unit_bytes;
  if (view.lane == p.n_stages) {
    *ring.ahead = {next, p.units - u, all - now, panels + to, part, at.left - in_part};
  }
  if constexpr (kHasBulkCopy) {
    if (view.lane < now) {
      mbarrier_expect(ring.barriers + view.lane * 8, bytes);
      bulk_copy(ring.base + view.lane * p.stage_bytes, next, bytes, ring.barriers + view.lane * 8);
    }
    __syncwarp();
  } else {
    for (uint32_t s = 0; s < p.n_stages; ++s) {
      const auto from = reinterpret_cast<const uint8_t*>(
          __shfl_sync(~0u, reinterpret_cast<unsigned long long>(next), static_cast<int>(s)));
      const uint32_t size = __shfl_sync(~0u, view.lane < now ? bytes : 0, static_cast<int>(s));
      for (uint32_t i = view.lane * 16; i < size; i += 512)
        cp_async_16(ring.base + s * p.stage_bytes + i, from + i);
      cp_async_commit();
    }
  }
}

}  // namespace sharpi::cuda::matvec
