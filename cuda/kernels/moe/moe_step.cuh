// SPDX-License-Identifier: MIT
// The inside of moe_step.cu: what its launch says, where a block's units are, and how they come.
// What a warp makes of its own is moe_units.cuh. Thread rule: device code.
#pragma once

#include "cuda/kernels/moe/moe_exchange.cuh"
#include "cuda/kernels/moe/moe_step_plan.h"
#include "cuda/kernels/moe/route_row.cuh"
#include "cuda/kernels/products/matvec.h"
#include "cuda/kernels/products/unit_shares.cuh"
#include "cuda/kernels/ptx.cuh"

namespace sharpi::cuda::step {

enum Phase : uint32_t { kBefore, kUp, kDown, kAfter, kNoPhase };

/// kRows: rows that the kernel is for; a launch may have one less (StepArgs::n_rows).
template <uint32_t kRows>
struct View {
  uint8_t* shared;
  Misc* misc;
  Slots* slots;
  uint32_t warp, lane;

  /// The row whose values the warp stages and stores, and its number among that row's warps.
  __device__ __forceinline__ uint32_t row() const { return kRows == 1 ? 0 : warp % kRows; }
  __device__ __forceinline__ uint32_t part() const { return warp / kRows; }
  __device__ __forceinline__ bool has_row(const StepArgs& p) const {
    return kRows <= 2 || row() < p.n_rows;
  }
};
template <uint32_t kRows>
constexpr uint32_t kRowWarps = kShareWarps / kRows;  // that compute

/// The warp's row's words of what `first` has of the first row.
template <uint32_t kRows, class T>
__device__ __forceinline__ T* of_row(const StepArgs& p, const View<kRows>& v, T* first) {
  if constexpr (kRows == 1) return first;
  return reinterpret_cast<T*>(reinterpret_cast<uint8_t*>(first) + v.row() * p.area);
}
template <uint32_t kRows>
__device__ __forceinline__ uint64_t* logit_of(const StepArgs& p, const View<kRows>& v,
                                              uint32_t output, uint32_t number) {
  return of_row(p, v, p.logits) + (number % 2 * kLogits + output) * kLogitStride;
}

/// Groups of a block: panels, pairs of them, panels of all tasks.
__device__ __forceinline__ uint32_t groups_of(const Groups& all) {
  return all.each + (blockIdx.x < all.more ? 1 : 0);
}
/// Of several rows each expert counts once, so how many there are is known once they are chosen.
template <uint32_t kRows>
__device__ __forceinline__ uint32_t routed_pairs(const StepArgs& p, const View<kRows>& v) {
  return kRows == 1 ? p.routed_pairs : v.misc->n_experts * p.expert_panels;
}
template <uint32_t kRows>
__device__ __forceinline__ uint32_t block_pairs(const StepArgs& p, const View<kRows>& v) {
  if constexpr (kRows == 1) return groups_of(p.pairs);
  const uint32_t all = routed_pairs(p, v) + p.shared_pairs;
  return (all - blockIdx.x + gridDim.x - 1) / gridDim.x;
}
template <uint32_t kRows>
__device__ __forceinline__ uint32_t routed_units(const StepArgs& p, const View<kRows>& v) {
  return kRows == 1 ? p.routed_units : v.misc->n_experts * p.ff_units;
}
template <uint32_t kRows>
__device__ __forceinline__ uint32_t down_units(const StepArgs& p, const View<kRows>& v) {
  return kRows == 1 ? p.row_units : routed_units(p, v) + p.row_units - p.routed_units;
}
template <uint32_t kRows>
__device__ __forceinline__ uint32_t block_units(const StepArgs& p, const View<kRows>& v,
                                                uint32_t phase) {
  if (phase == kBefore) return p.before_x != nullptr ? groups_of(p.out_panels) * p.before_units : 0;
  if (phase == kUp) return block_pairs(p, v) * 2 * p.units;
  if (phase == kDown) return groups_of(p.out_panels) * down_units(p, v);
  return groups_of(p.after_panels) * p.units;
}
/// A warp's units of a phase.
template <uint32_t kRows>
__device__ __forceinline__ Share share_of(const StepArgs& p, const View<kRows>& v, uint32_t phase) {
  return cuda::share_of(block_units(p, v, phase), v.warp);
}

/// A unit: where it is, and what it multiplies.
struct Line {
  const uint8_t* from;
  uint32_t bytes;  // 0: nothing, its expert is skipped
  uint32_t use;    // type, group, unit of the staged row
  __device__ __forceinline__ static uint32_t group(uint32_t use) { return use >> 12 & 4095u; }
  __device__ __forceinline__ static uint32_t unit(uint32_t use) { return use & 4095u; }
  __device__ __forceinline__ static GgmlType type(uint32_t use) {
    return static_cast<GgmlType>(use >> 24);
  }
};

__device__ __forceinline__ uint32_t after_task(const StepArgs& p, uint32_t panel) {
  uint32_t t = 0;
#pragma unroll
  for (uint32_t k = 1; k < kMaxMatmulTasks; ++k) {
    if (k < p.n_after && panel >= p.first_panel[k]) t = k;
  }
  return t;
}

/// Unit q of the block's part of a phase.
template <uint32_t kRows>
__device__ __forceinline__ Line line_of(const StepArgs& p, const View<kRows>& v, uint32_t phase,
                                        uint32_t q) {
  const Divider& by = phase == kBefore ? p.by_before : phase == kDown ? p.by_row_units : p.by_units;
  uint32_t group, row_unit;
  if (kRows != 1 && phase == kDown) {
    const uint32_t units = down_units(p, v);
    group = q / units;
    row_unit = q - group * units;
  } else {
    group = divide(q, by);
    row_unit = q - group * by.divisor;
  }
  uint32_t unit = row_unit, panel = blockIdx.x + group * gridDim.x, slab = kBeforeSlab;
  int32_t slot = 0;
  if (phase == kUp) {
    const uint32_t pair = blockIdx.x + group / 2 * gridDim.x;
    const uint32_t routed = routed_pairs(p, v);
    panel = pair - routed;
    slab = kSharedGate + group % 2;
    if (pair < routed) {
      const uint32_t j = divide(pair, p.by_panels);
      panel = pair - j * p.by_panels.divisor;
      slab = kGateSlab + group % 2;
      slot = v.misc->slot[j];
    }
  } else if (phase == kDown) {
    slab = kSharedDown;
    const uint32_t routed = routed_units(p, v);
    unit = row_unit - routed;
    if (row_unit < routed) {
      const uint32_t j = divide(row_unit, p.by_ff_units);
      unit = row_unit - j * p.ff_units;
      slab = kDownSlab;
      slot = v.misc->slot[j];
    }
  } else if (phase == kAfter) {
    const uint32_t t = after_task(p, panel);
    panel -= p.first_panel[t];
    slab = kAfterSlab + t;
  }
  const Slab& s = p.slabs[slab];
  return {s.data + static_cast<uint64_t>(max(slot, 0)) * s.expert_bytes +
              uint64_t{panel} * s.panel_bytes + uint64_t{unit} * s.unit_bytes,
          slot < 0 ? 0 : s.unit_bytes,
          static_cast<uint32_t>(s.type) << 24 | group << 12 | row_unit};
}

/// Ring of one warp: the units of all phases in their order, as many under way as there is room
/// for. All lanes know all of it; lane l holds the line of what is fetched l-th of 32. kSmall:
/// there may be room for a unit only; without bulk copies all lanes copy, a group of copies each
/// unit.
template <uint32_t kRows, bool kSmall>
struct Ring {
  using View = step::View<kRows>;
  static constexpr bool kBulk = kHasBulkCopy;
  PipelineState place;                                          // of the next unit to use
  uint32_t head = 0, in_use = 0, next_slot = 0, under_way = 0;  // bytes in use: lost ones counted
  uint32_t phase = kNoPhase, begin = 0, next = 0, count = 0, looked = 0;
  uint32_t wants = kNothing;  // bytes of the next unit to fetch, kNothing: not looked up
  Line line = {};

  __device__ __forceinline__ uint32_t full(const View& v, uint32_t s) const {
    return shared_address(&v.slots->full[v.warp][s]);
  }
  /// Units of the phases up to `last` that there is room for.
  __device__ __forceinline__ void fetch(const StepArgs& p, const View& v, uint32_t last) {
#pragma unroll 1
    while (under_way != kSlots) {
      if (wants == kNothing) {
#pragma unroll 1
        while (next == count) {
          if (phase == last) return;
          phase = phase == kNoPhase ? kBefore : phase + 1;
          const Share s = share_of(p, v, phase);
          begin = s.first;
          count = s.count;
          next = looked = 0;
        }
        if (next == looked) {
          line = line_of(p, v, phase, begin + min(next + v.lane, count - 1));
          looked += 32;
        }
        wants = __shfl_sync(~0u, line.bytes, static_cast<int>(next % 32));
      }
      if (kSmall && under_way == 0) head = 0;
      const bool wraps = ring_wraps(head, wants, p.ring_bytes);
      const uint32_t taken = ring_taken(wraps, head, wants, p.ring_bytes);
      if (in_use + taken > p.ring_bytes) return;
      const uint32_t at = wraps ? 0 : head;
      if (v.lane == next % 32) {
        const uint32_t bar = full(v, next_slot);
        v.slots->note[v.warp][next_slot] = {line.use, wants != 0 ? at : kNothing, taken};
        if (!kBulk) {
          // All lanes copy, below.
        } else if (wants != 0) {
          mbarrier_expect(bar, wants);
          bulk_copy(shared_address(v.shared) + v.warp * p.ring_bytes + at, line.from, wants, bar);
        } else {
          mbarrier_arrive(bar);
        }
      }
      if constexpr (!kBulk) copy_line(p, v, at);
      __syncwarp();
      head = at + wants;
      in_use += taken;
      next_slot = (next_slot + 1) % kSlots;
      ++under_way;
      ++next;
      wants = kNothing;
    }
  }
  /// The unit to fetch, by all lanes.
  __device__ __forceinline__ void copy_line(const StepArgs& p, const View& v, uint32_t at) const {
    const auto* from = reinterpret_cast<const uint8_t*>(__shfl_sync(
        ~0u, reinterpret_cast<unsigned long long>(line.from), static_cast<int>(next % 32)));
    const uint32_t to = shared_address(v.shared) + v.warp * p.ring_bytes + at;
#pragma unroll 1
    for (uint32_t i = v.lane * 16; i < wants; i += 512) cp_async_16(to + i, from + i);
    cp_async_commit();
  }
  /// The next unit; it is there.
  __device__ __forceinline__ Note take(const View& v) const {
    const Note note = v.slots->note[v.warp][place.slot];
    if constexpr (kBulk) {
      mbarrier_wait(full(v, place.slot), place.parity);
    } else {
      if (under_way == 1) {
        cp_async_wait<0>();
      } else if (under_way == 2) {
        cp_async_wait<1>();
      } else {
        cp_async_wait<2>();
      }
      __syncwarp();
    }
    return note;
  }
  __device__ __forceinline__ void give_back(uint32_t taken) {
    __syncwarp();
    in_use -= taken;
    --under_way;
    place.next();
  }
};

}  // namespace sharpi::cuda::step
