// SPDX-License-Identifier: MIT
// The inside of moe_step.cu: what its launch says, where a block's units are, a warp's ring of them
// and what it makes of it.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/fixed_product.cuh"
#include "cuda/kernels/matvec.h"
#include "cuda/kernels/moe_exchange.cuh"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/router.h"

namespace sharpi::cuda::step {

constexpr uint32_t kWarps = 16;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kSlots = 8;      // units under way per warp
constexpr uint32_t kKept = 2;       // float4s of a router row that a lane holds before x is known
constexpr uint32_t kMostSm = 1024;  // multiprocessors
constexpr uint32_t kHeadBytes = kMostSm * 4;
constexpr uint32_t kMostGroups = 4096, kMostUnits = 4096;  // of a block, of a row

/// Matrices of all experts: what a unit's address follows from.
struct Slab {
  const uint8_t* data;
  uint64_t expert_bytes;
  uint32_t panel_bytes, unit_bytes;
  GgmlType type;
};

/// Numbers of the slabs.
enum SlabId : uint32_t {
  kGateSlab,
  kUpSlab,
  kDownSlab,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kBeforeSlab,
  kAfterSlab
};
constexpr uint32_t kSlabs = kAfterSlab + kMaxMatmulTasks;

/// How many panels (pairs) a block has.
struct Groups {
  uint32_t each, more;  // the first `more` blocks have one more
};

struct StepArgs {
  const float* x;  // before the first phase
  const float* norm_weight;
  float norm_eps, after_eps;
  bool renormalize, add;
  Epilogue activation;
  const float* router;
  const float* shared_gate;  // nullptr: no such row
  const int32_t* slot_of_expert;
  const float* before_x;  // nullptr: no such phase
  const float* after_norm;
  float *y, *weights;
  int32_t* ids;
  uint32_t* sync;                  // each block's number of launches
  uint64_t *logits, *x1, *h, *y1;  // behind it; h: the routed experts', then the shared one's
  uint32_t n_embd, n_experts, n_used;
  uint32_t router_rows, slice_bits;  // all rows; 1 << slice_bits warps share one
  uint32_t units, ff_units, routed_units, row_units, before_units;  // row_units: all of down
  uint32_t routed_pairs;
  Groups pairs, out_panels, after_panels;
  Divider by_units, by_panels, by_row_units, by_ff_units, by_before;  // by_panels: of an expert
  uint32_t ring_bytes;                                                // of a warp
  uint32_t image, raw, squares, part, range, misc, barriers;  // shared memory, behind the rings
  uint32_t n_after;
  uint32_t first_panel[kMaxMatmulTasks];  // of the tasks of the last phase
  float* after_y[kMaxMatmulTasks];
  Slab slabs[kSlabs];
};

struct Misc {
  float router[kWarps];  // partial dots
  float logits[kMaxExperts];
  uint32_t key[kMaxExperts];               // of each 32 experts the n_used largest
  uint32_t candidate[kMaxExperts];         // whose they are
  int32_t slot[kWarps * kMaxExpertsUsed];  // every warp's own copy
};

enum Phase : uint32_t { kBefore, kUp, kDown, kAfter, kNoPhase };

struct View {
  uint8_t* shared;
  Misc* misc;
  uint32_t warp, lane;
};

/// A warp's units of a phase.
struct Share {
  uint32_t begin, count;
};
/// Groups of a block: panels, pairs of them, panels of all tasks.
__device__ __forceinline__ uint32_t groups_of(const Groups& all) {
  return all.each + (blockIdx.x < all.more ? 1 : 0);
}
__device__ __forceinline__ uint32_t block_units(const StepArgs& p, uint32_t phase) {
  if (phase == kBefore) return p.before_x != nullptr ? groups_of(p.out_panels) * p.before_units : 0;
  if (phase == kUp) return groups_of(p.pairs) * 2 * p.units;
  if (phase == kDown) return groups_of(p.out_panels) * p.row_units;
  return groups_of(p.after_panels) * p.units;
}
__device__ __forceinline__ Share share_of(const StepArgs& p, uint32_t phase, uint32_t warp) {
  const uint32_t all = block_units(p, phase), each = all / kWarps, more = all % kWarps;
  return {warp * each + min(warp, more), each + (warp < more ? 1 : 0)};
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
__device__ __forceinline__ Line line_of(const StepArgs& p, const View& v, uint32_t phase,
                                        uint32_t q) {
  const Divider& by = phase == kBefore ? p.by_before : phase == kDown ? p.by_row_units : p.by_units;
  const uint32_t group = divide(q, by), row_unit = q - group * by.divisor;
  uint32_t unit = row_unit, panel = blockIdx.x + group * gridDim.x, slab = kBeforeSlab;
  int32_t slot = 0;
  if (phase == kUp) {
    const uint32_t pair = blockIdx.x + group / 2 * gridDim.x;
    panel = pair - p.routed_pairs;
    slab = kSharedGate + group % 2;
    if (pair < p.routed_pairs) {
      const uint32_t j = divide(pair, p.by_panels);
      panel = pair - j * p.by_panels.divisor;
      slab = kGateSlab + group % 2;
      slot = v.misc->slot[v.warp * kMaxExpertsUsed + j];
    }
  } else if (phase == kDown) {
    slab = kSharedDown;
    unit = row_unit - p.routed_units;
    if (row_unit < p.routed_units) {
      const uint32_t j = divide(row_unit, p.by_ff_units);
      unit = row_unit - j * p.ff_units;
      slab = kDownSlab;
      slot = v.misc->slot[v.warp * kMaxExpertsUsed + j];
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
/// for. All lanes know all of it; lane l holds what is copied l-th of 32, and what slot l is used
/// for.
struct Ring {
  uint32_t base, barriers, bytes;
  uint32_t tail = 0, slot = 0, parity = 0;  // of the next unit to use
  uint32_t head = 0, next_slot = 0, under_way = 0;
  uint32_t phase = kNoPhase, begin = 0, next = 0, count = 0, looked = 0;
  Line line = {};
  uint32_t held_bytes = 0, held_use = 0;

  /// Whether n more bytes have a place; it is at `head` then.
  __device__ __forceinline__ bool finds_room(uint32_t n) {
    if (under_way == kSlots) return false;
    if (under_way == 0) {
      head = tail = 0;
      return true;
    }
    if (head <= tail) return head + n <= tail;
    if (head + n <= bytes) return true;
    if (n > tail) return false;
    head = 0;
    return true;
  }
  /// Units of the phases up to `last` that there is room for.
  __device__ __forceinline__ void fill(const StepArgs& p, const View& v, uint32_t last) {
    for (;;) {
      while (next == count) {
        if (phase != kNoPhase && phase >= last) return;
        phase = phase == kNoPhase ? kBefore : phase + 1;
        const Share s = share_of(p, phase, v.warp);
        begin = s.begin;
        count = s.count;
        next = looked = 0;
      }
      if (next == looked) {
        line = line_of(p, v, phase, begin + min(next + v.lane, count - 1));
        looked += 32;
      }
      const uint32_t n = __shfl_sync(~0u, line.bytes, static_cast<int>(next % 32)),
                     use = __shfl_sync(~0u, line.use, static_cast<int>(next % 32));
      if (!finds_room(n)) return;
      if (v.lane == next_slot) {
        held_bytes = n;
        held_use = use;
      }
      if (v.lane == next % 32) {
        if (n != 0) {
          mbarrier_expect(barriers + next_slot * 8, n);
          bulk_copy(base + head, line.from, n, barriers + next_slot * 8);
        } else {
          mbarrier_arrive(barriers + next_slot * 8);
        }
      }
      head += n;
      next_slot = (next_slot + 1) % kSlots;
      ++under_way;
      ++next;
    }
  }
  /// Where the next unit lies; it is there.
  __device__ __forceinline__ uint32_t take(uint32_t n) {
    if (tail + n > bytes) tail = 0;
    mbarrier_wait(barriers + slot * 8, parity);
    return tail;
  }
  __device__ __forceinline__ void give_back(uint32_t n) {
    __syncwarp();
    tail += n;
    --under_way;
    slot = (slot + 1) % kSlots;
    parity ^= slot == 0 ? 1u : 0u;
  }
};

/// Sums of a lane, for rows g and g + 8: of both kinds that FixedSums has.
template <GgmlType kType>
__device__ __forceinline__ float4 add_fixed(const uint8_t* unit, const FixedInputs& in, int lane,
                                            float4 sum) {
  FixedSums acc;
  if constexpr (!FixedProduct<kType>::kPairs) acc.whole[0] = sum.x, acc.whole[1] = sum.y;
  acc.split[0] = sum.z;
  acc.split[1] = sum.w;
  FixedProduct<kType>::add(unit, in, lane, acc);
  if constexpr (!FixedProduct<kType>::kPairs)
    return {acc.whole[0], acc.whole[1], acc.split[0], acc.split[1]};
  // Each lane's half is in two lanes of the four.
  return {sum.x, sum.y, fmaf(0.5f, acc.whole[0], acc.split[0]),
          fmaf(0.5f, acc.whole[1], acc.split[1])};
}

/// One copy of every type's arithmetic serves all phases: code runs once per launch here, so it is
/// kept short.
__device__ __noinline__ float4 add_unit(GgmlType type, const uint8_t* unit, const uint8_t* x,
                                        const float* sums, float inverse, int lane, float4 sum) {
  const FixedInputs in = {x, sums, inverse};
  switch (type) {
    case GgmlType::kQ8_0:
      return add_fixed<GgmlType::kQ8_0>(unit, in, lane, sum);
    case GgmlType::kQ4_0:
      return add_fixed<GgmlType::kQ4_0>(unit, in, lane, sum);
    case GgmlType::kQ4_K:
      return add_fixed<GgmlType::kQ4_K>(unit, in, lane, sum);
    case GgmlType::kQ5_K:
      return add_fixed<GgmlType::kQ5_K>(unit, in, lane, sum);
    default:
      return add_fixed<GgmlType::kQ6_K>(unit, in, lane, sum);
  }
}

/// The warp's piece of a group; group and warp only ever grow along the units, and never stay both:
/// their sum is a slot of its own.
__device__ __forceinline__ void leave_piece(const StepArgs& p, const View& v, uint32_t group,
                                            bool first, bool last, float4 acc) {
  acc.z += __shfl_xor_sync(~0u, acc.z, 1);
  acc.w += __shfl_xor_sync(~0u, acc.w, 1);
  acc.z += __shfl_xor_sync(~0u, acc.z, 2);
  acc.w += __shfl_xor_sync(~0u, acc.w, 2);
  if (v.lane % 4 == 0) {
    float* to =
        reinterpret_cast<float*>(v.shared + p.part) + (group + v.warp) * kPanelRows + v.lane / 4;
    to[0] = acc.x + acc.z;
    to[8] = acc.y + acc.w;
  }
  if (v.lane == 0) {
    auto* range = reinterpret_cast<uint32_t*>(v.shared + p.range) + 2 * group;
    if (first) range[0] = v.warp;
    if (last) range[1] = v.warp;
  }
}

/// The warp's units of a phase; sums of its pieces of groups go to shared memory.
__device__ __forceinline__ void run_phase(const StepArgs& p, const View& v, Ring& ring,
                                          uint32_t phase) {
  const uint32_t count = share_of(p, phase, v.warp).count;
  const uint32_t units = phase == kDown ? p.row_units : phase == kBefore ? p.before_units : p.units;
  const FixedMap map = fixed_map(units);
  const uint8_t* image = v.shared + p.image;
  const uint8_t* x = image + v.lane / 4 % 2 * 32 + v.lane % 4 * 8;
  const auto* sums = reinterpret_cast<const float*>(image + map.sums);
  const auto* inverse = reinterpret_cast<const float*>(image + map.inverse);
  const uint8_t* stages = v.shared + v.warp * p.ring_bytes;
  float4 acc = {};
  bool first = false;
#pragma unroll 1
  for (uint32_t k = 0;; ++k) {
    // Whatever more has room is fetched when the phase is over and the warp waits anyway.
    if (ring.under_way <= 1 || k == count) ring.fill(p, v, phase == kBefore ? kBefore : kAfter);
    if (k == count) break;
    const uint32_t bytes = __shfl_sync(~0u, ring.held_bytes, static_cast<int>(ring.slot)),
                   use = __shfl_sync(~0u, ring.held_use, static_cast<int>(ring.slot));
    const uint32_t u = Line::unit(use);
    if (k == 0 || u == 0) {
      acc = {};
      first = u == 0;
    }
    const uint32_t at = ring.take(bytes);
    if (bytes != 0) {
      acc = add_unit(Line::type(use), stages + at, x + u * 512, sums + u * 8, inverse[u],
                     static_cast<int>(v.lane), acc);
    }
    ring.give_back(bytes);
    const bool last = u + 1 == units;
    if (last || k + 1 == count) leave_piece(p, v, Line::group(use), first, last, acc);
  }
}

/// Sum of row `r` of a group over the warps that have pieces of it, in order.
__device__ __forceinline__ float group_sum(const StepArgs& p, const uint8_t* shared, uint32_t group,
                                           uint32_t r) {
  const float* part = reinterpret_cast<const float*>(shared + p.part) + group * kPanelRows + r;
  const uint2 range = reinterpret_cast<const uint2*>(shared + p.range)[group];
  float sum = 0.0f;
#pragma unroll 4
  for (uint32_t w = range.x; w <= range.y; ++w) sum += part[w * kPanelRows];
  return sum;
}

/// 1 / rms of the row of n_embd, from the squares of its units.
__device__ __forceinline__ float norm_factor(const StepArgs& p, const View& v, const float* weight,
                                             float eps) {
  if (weight == nullptr) return 1.0f;
  const auto* squares = reinterpret_cast<const float*>(v.shared + p.squares);
  float sum = 0.0f;
#pragma unroll 8
  for (uint32_t u = 0; u < p.units; ++u) sum += squares[u];
  return rsqrtf(sum / static_cast<float>(p.n_embd) + eps);
}

}  // namespace sharpi::cuda::step
