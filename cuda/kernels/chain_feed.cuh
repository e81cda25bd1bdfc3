// SPDX-License-Identifier: MIT
// The warp of chain.cu that copies weights into the rings of the others.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/chain_stage.cuh"

namespace sharpi::cuda {

/// Brings a contiguous piece, multiple of 16 bytes, into L2.
__device__ __forceinline__ void prefetch_bulk(const void* from, uint32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/// The units of one warp, product after product.
template <uint32_t kWarps>
struct UnitWalk {
  const uint8_t* next;
  uint32_t bytes;           // of the next unit; 0 = no more
  uint32_t panel;           // in the table
  uint32_t in_panel, left;  // units left, the next one counted, in the panel and in the product
  uint32_t product;

  __device__ __forceinline__ void enter(const ChainLaunch& p, const ChainView& view, uint32_t end) {
    bytes = 0;
    for (; product < end; ++product) {
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
  __device__ __forceinline__ void advance(const ChainLaunch& p, const ChainView& view,
                                          uint32_t end) {
    next += bytes;
    --in_panel;
    if (--left == 0) {
      ++product;
      enter(p, view, end);
    } else if (in_panel == 0) {
      const ChainPanel& e = panel_table(p, view.shared)[++panel];
      next = e.data;
      bytes = e.unit_bytes;
      in_panel = p.products[product].units;
    }
  }
};

/// The warp that copies: lane w keeps the ring of warp w full. A slot's barriers say when a unit
/// has arrived and when its warp is done with it. What is under way stays limited: whatever else a
/// block reads would wait behind it. Further ahead than a ring reaches, and into the next launch,
/// units are brought into L2: the memory works on while rings are full, blocks meet and attention
/// runs.
template <uint32_t kWarps>
struct Feed {
  UnitWalk<kWarps> copy, fetch;
  uint32_t head, in_use;  // of the ring; bytes (lost ones counted)
  uint32_t units, freed;  // so far
  uint32_t under_way;
  uint32_t distance;  // bytes from copy to fetch

  __device__ __forceinline__ void start(const ChainLaunch& p, const ChainView& view) {
    copy.enter(p, view, p.n_products);
    if (p.window == 0) return;
    // The launch before has fetched the first ones.
    fetch.enter(p, view, p.n_listed);
    while (fetch.bytes != 0 && distance < p.window) {
      distance += fetch.bytes;
      fetch.advance(p, view, p.n_listed);
    }
  }
  __device__ __forceinline__ bool goes_on(const ChainLaunch& p) const {
    return copy.bytes != 0 || (fetch.bytes != 0 && distance < p.window);
  }
  /// One round: what has landed, what was freed, one more unit of each kind.
  __device__ __forceinline__ void round(const ChainLaunch& p, const ChainView& view) {
    ChainSlots& slots = slots_of(p, view);
    const uint32_t full = shared_address(slots.full[view.lane % kWarps]),
                   empty = shared_address(slots.empty[view.lane % kWarps]);
    const uint32_t landed = units - under_way;
    if (under_way != 0 && mbarrier_done(full + landed % kSlots * 8, landed / kSlots % 2))
      --under_way;
    if (freed != units && mbarrier_done(empty + freed % kSlots * 8, freed / kSlots % 2)) {
      in_use -= slots.taken[view.lane % kWarps][freed % kSlots];
      ++freed;
    }
    const uint32_t all = __reduce_add_sync(~0u, under_way * copy.bytes);
    if (copy.bytes != 0 && under_way + 1 != kSlots && (under_way == 0 || all < p.ahead))
      copy_unit(p, view, full);
    if (fetch.bytes != 0 && distance < p.window) {
      prefetch_bulk(fetch.next, fetch.bytes);
      distance += fetch.bytes;
      fetch.advance(p, view, p.n_listed);
    }
  }
  __device__ __forceinline__ void copy_unit(const ChainLaunch& p, const ChainView& view,
                                            uint32_t full) {
    const uint32_t bytes = copy.bytes;
    const bool wraps = head + bytes > p.ring_bytes;
    const uint32_t more = bytes + (wraps ? p.ring_bytes - head : 0);
    if (in_use + more > p.ring_bytes || units - freed == kSlots) return;
    const uint32_t to = wraps ? 0 : head, slot = units % kSlots;
    mbarrier_expect(full + slot * 8, bytes);
    bulk_copy(shared_address(view.shared) + view.lane * p.ring_bytes + to, copy.next, bytes,
              full + slot * 8);
    slots_of(p, view).taken[view.lane][slot] = more;
    in_use += more;
    head = to + bytes;
    ++units;
    ++under_way;
    copy.advance(p, view, p.n_products);
    if (distance != 0) {
      distance -= bytes;
    } else if (fetch.bytes != 0) {
      fetch.advance(p, view, p.n_listed);
    }
  }
};

template <uint32_t kWarps>
__device__ __forceinline__ void feed_rings(const ChainLaunch& p, const ChainView& view) {
  Feed<kWarps> feed = {};
  if (view.lane < kWarps) feed.start(p, view);
  while (__any_sync(~0u, feed.goes_on(p))) feed.round(p, view);
}

}  // namespace sharpi::cuda
