// SPDX-License-Identifier: MIT
// The warp of chain.cu that copies weights into the rings of the others.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/chain_stage.cuh"

namespace sharpi::cuda {

/// The warp that copies: lane w keeps the ring of warp w full. A slot's barriers say when a unit
/// has arrived and when its warp is done with it. What is under way stays limited: whatever else a
/// block reads would wait behind it.
template <uint32_t kWarps>
struct Feed {
  const uint8_t* next;
  uint32_t bytes;           // of the next unit; 0 = no more
  uint32_t panel;           // in the table
  uint32_t in_panel, left;  // units left, the next one counted, in the panel and in the product
  uint32_t product;
  uint32_t head, in_use;  // of the ring; bytes (lost ones counted)
  uint32_t units, freed;  // so far
  uint32_t under_way;

  __device__ __forceinline__ void enter(const ChainLaunch& p, const ChainView& view) {
    bytes = 0;
    for (; product < p.n_products; ++product) {
      const uint32_t n = p.products[product].units;
      const Work& work = work_of(p, view.shared, product);
      const Share s = share_of<kWarps>(work.n_panels, n, view.lane);
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
  /// One round: what has landed, what was freed, one more unit.
  __device__ __forceinline__ void round(const ChainLaunch& p, const ChainView& view) {
    ChainSlots& slots = slots_of(p, view);
    const uint32_t full = shared_address(slots.full[view.lane % kWarps]),
                   empty = shared_address(slots.empty[view.lane % kWarps]);
    uint32_t* taken = slots.taken[view.lane % kWarps];
    const uint32_t landed = units - under_way;
    if (under_way != 0 && mbarrier_done(full + landed % kSlots * 8, landed / kSlots % 2))
      --under_way;
    if (freed != units && mbarrier_done(empty + freed % kSlots * 8, freed / kSlots % 2)) {
      in_use -= taken[freed % kSlots];
      ++freed;
    }
    const uint32_t all = __reduce_add_sync(~0u, under_way * bytes);
    if (bytes == 0 || under_way + 1 == kSlots || (under_way != 0 && all >= p.ahead)) return;
    const bool wraps = head + bytes > p.ring_bytes;
    const uint32_t more = bytes + (wraps ? p.ring_bytes - head : 0);
    if (in_use + more > p.ring_bytes || units - freed == kSlots) return;
    const uint32_t to = wraps ? 0 : head, slot = units % kSlots;
    mbarrier_expect(full + slot * 8, bytes);
    bulk_copy(shared_address(view.shared) + view.lane * p.ring_bytes + to, next, bytes,
              full + slot * 8);
    taken[slot] = more;
    in_use += more;
    head = to + bytes;
    ++units;
    ++under_way;
    advance(p, view);
  }
};

template <uint32_t kWarps>
__device__ __forceinline__ void feed_rings(const ChainLaunch& p, const ChainView& view) {
  Feed<kWarps> feed = {};
  if (view.lane < kWarps) feed.enter(p, view);
  while (__any_sync(~0u, feed.bytes != 0)) feed.round(p, view);
}

}  // namespace sharpi::cuda
