// SPDX-License-Identifier: MIT
// The producer warps of chain.cu: the ring buffers in shared memory (a multistage pipeline with one
// full and one empty barrier for each slot), and the copies that fill them with weights.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/products/chain_stage.cuh"

namespace sharpi::cuda {

/// Makes the barriers of all rings; the caller synchronises the block before anybody uses them.
__device__ __forceinline__ void init_rings(const ChainLaunch& p, const ChainView& view) {
  if (view.warp < kShareWarps && view.lane < kSlots) {
    ChainSlots& slots = slots_of(p, view);
    mbarrier_init(shared_address(&slots.full[view.warp][view.lane]), 1);
    mbarrier_init(shared_address(&slots.empty[view.warp][view.lane]), p.arrivals);
    mbarrier_init_fence();
  }
  tell_multiplies(p, view, 0);
}

/// Warps that copy, one a scheduler: lane i of the f-th keeps the ring of warp f + i * kFeeders
/// full. A slot's barriers say when a unit has arrived and when its warp is done with it. Two units
/// of a ring are under way while the block multiplies, one while it waits for values: that is
/// enough for memory to be busy, and whatever else the block reads would wait behind more.
struct Feed {
  const uint8_t* next;
  RingUse use;              // of the ring by units not yet freed
  uint32_t bytes;           // of the next unit; 0 = no more
  uint32_t panel;           // in the table
  uint32_t in_panel, left;  // units left, the next one counted, in the panel and in the product
  uint32_t product, warp;
  uint32_t head;                  // of the ring
  uint32_t units, freed, landed;  // so far

  __device__ __forceinline__ void enter(const ChainLaunch& p, const ChainView& view) {
    bytes = 0;
    for (; product < p.n_products; ++product) {
      const uint32_t n = p.products[product].units;
      const Work& work = work_of(p, view.shared, product);
      const Share s = share_of(work.n_panels * n, warp);
      if (s.count == 0) continue;
      const uint32_t v = s.first / n, u = s.first - v * n;
      panel = work.base + v;
      in_panel = n - u;
      left = s.count;
      const ChainPanel& e = panel_table(p, view.shared)[panel];
      bytes = e.unit_bytes;
      next = e.data + u * bytes;
      return;
    }
  }
  __device__ __forceinline__ void advance(const ChainLaunch& p, const ChainView& view) {
    next += bytes;
    --in_panel;
    if (--left == 0) {
      ++product;
      enter(p, view);
    } else if (in_panel == 0) {
      const ChainPanel& e = panel_table(p, view.shared)[++panel];
      next = e.data;
      bytes = e.unit_bytes;
      in_panel = p.products[product].units;
    }
  }
  /// What was freed, what has arrived, and one more unit.
  __device__ __forceinline__ void round(const ChainLaunch& p, const ChainView& view, uint32_t full,
                                        uint32_t empty, uint32_t multiplies) {
    if (freed != units && mbarrier_done(empty + freed % kSlots * 8, freed / kSlots % 2)) {
      use.give_back();
      ++freed;
    }
    if (landed != units && mbarrier_done(full + landed % kSlots * 8, landed / kSlots % 2)) ++landed;
    if (units - landed >= (multiplies != 0 ? 2 : 1)) return;
    const bool wraps = ring_wraps(head, bytes, p.ring_bytes);
    const uint32_t more = ring_taken(wraps, head, bytes, p.ring_bytes);
    if (!use.has_room(more, p.ring_bytes)) return;
    const uint32_t to = wraps ? 0 : head, slot = units % kSlots;
    mbarrier_expect(full + slot * 8, bytes);
    bulk_copy(shared_address(view.shared) + warp * p.ring_bytes + to, next, bytes, full + slot * 8);
    use.take(more);
    head = to + bytes;
    ++units;
    advance(p, view);
  }
};

__device__ __forceinline__ void feed_rings(const ChainLaunch& p, const ChainView& view) {
  if (view.lane >= kShareWarps / kFeeders) return;
  Feed feed = {};
  feed.warp = view.warp - kShareWarps + view.lane * kFeeders;
  feed.enter(p, view);
  ChainSlots& slots = slots_of(p, view);
  const uint32_t full = shared_address(slots.full[feed.warp]),
                 empty = shared_address(slots.empty[feed.warp]);
  const uint32_t progress = shared_address(&progress_of(p, view).multiplies);
  // In the form for tools nobody tells.
  while (feed.bytes != 0)
    feed.round(p, view, full, empty, p.arrivals == 1 ? hear_multiplies(progress) : 0);
}

}  // namespace sharpi::cuda
