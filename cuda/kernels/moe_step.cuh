// SPDX-License-Identifier: MIT
// The inside of moe_step.cu: what its launch says, where a block's units are, a warp's ring of them
// and what it makes of it, and how values pass between blocks.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/matvec.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/router.h"
#include "cuda/kernels/unit_product.cuh"

namespace sharpi::cuda::step {

constexpr uint32_t kWarps = 16;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kMaxStages = 4;
constexpr uint32_t kHeadBytes = 256;  // two words 128 bytes apart
constexpr uint32_t kKept = 4;         // float4s of a router row that a lane holds before x is known

/// Matrices of all experts: what a unit's address follows from.
struct Slab {
  const uint8_t* data;
  uint64_t expert_bytes;
  uint32_t panel_bytes, unit_bytes, tail_bytes;
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
  uint32_t* sync;
  float *logits, *x1, *h, *shared_h;  // behind it
  uint32_t n_embd, d_ff, d_shared, n_experts, n_used, before_in;
  uint32_t router_rows, slices;  // all rows; warps that share one
  uint32_t units, ff_units, shared_units, row_units, before_units;  // row_units: all of down
  uint32_t shared_pairs;
  Groups pairs, out_panels, after_panels;
  Divider by_units, by_panels, by_row_units, by_ff_units, by_before;  // by_panels: of an expert
  uint32_t n_stages, stage_bytes;
  uint32_t image, part, misc, barriers;  // shared memory, behind the rings
  uint32_t n_after;
  uint32_t first_panel[kMaxMatmulTasks];  // of the tasks of the last phase
  float* after_y[kMaxMatmulTasks];
  Slab slabs[kSlabs];
};

struct Misc {
  float2 router[kWarps];              // partial dot and squares
  float weight[kMaxExpertsUsed + 1];  // [n_used]: of the shared expert
  int32_t slot[kMaxExpertsUsed];
};

/// What other blocks left, not what this one's L1 remembers.
__device__ __forceinline__ float4 fresh(const float* from) {
  return __ldcg(reinterpret_cast<const float4*>(from));
}

/// Where all blocks of a launch meet, several times: what thread 0 of each does. All meetings but
/// the last count up one word, the last another: it is cleared on the way to the first, and the
/// first word after the last.
struct Meetings {
  uint32_t* words;  // 128 bytes apart
  uint32_t left, count;

  /// For all that the threads wrote with which this one has synchronised.
  __device__ __forceinline__ void meet() {
    uint32_t* word = --left != 0 ? words : words + 32;
    if (blockIdx.x == 0 && count == 0) words[32] = 0;
    const uint32_t all = left != 0 ? ++count * gridDim.x : gridDim.x;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(word) : "memory");
    uint32_t now;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    } while (now < all);
    if (blockIdx.x == 0 && left == 0) words[0] = 0;
  }
};

/// Where a unit is, and what it multiplies.
struct Place {
  uint32_t slab;
  int32_t slot;  // negative: nowhere, the expert is skipped
  uint32_t panel, unit, of_units;
  uint32_t image_unit, group;  // group: panel or member of a pair within the block
};

enum Phase : uint32_t { kBefore, kUp, kDown, kAfter };

struct View {
  uint8_t* shared;
  const Misc* misc;
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
/// Warp w's begin of `all` units.
__device__ __forceinline__ uint32_t begin_of(uint32_t all, uint32_t warp) {
  return warp * (all / kWarps) + min(warp, all % kWarps);
}
__device__ __forceinline__ Share share_of(const StepArgs& p, uint32_t phase, uint32_t warp) {
  const uint32_t all = block_units(p, phase), begin = begin_of(all, warp);
  return {begin, begin_of(all, warp + 1) - begin};
}

__device__ __forceinline__ Place place_up(const StepArgs& p, const View& v, uint32_t q) {
  Place at;
  at.group = divide(q, p.by_units);
  at.unit = at.image_unit = q - at.group * p.units;
  at.of_units = p.units;
  const uint32_t pair = blockIdx.x + at.group / 2 * gridDim.x, which = at.group % 2;
  if (pair < p.shared_pairs) {
    at.slab = kSharedGate + which;
    at.slot = 0;
    at.panel = pair;
  } else {
    const uint32_t j = divide(pair - p.shared_pairs, p.by_panels);
    at.slab = kGateSlab + which;
    at.slot = v.misc->slot[j];
    at.panel = pair - p.shared_pairs - j * p.by_panels.divisor;
  }
  return at;
}
__device__ __forceinline__ Place place_down(const StepArgs& p, const View& v, uint32_t q) {
  Place at;
  at.group = divide(q, p.by_row_units);
  at.image_unit = q - at.group * p.row_units;
  at.panel = blockIdx.x + at.group * gridDim.x;
  if (at.image_unit < p.shared_units) {
    at.slab = kSharedDown;
    at.slot = 0;
    at.unit = at.image_unit;
    at.of_units = p.shared_units;
  } else {
    const uint32_t r = at.image_unit - p.shared_units, j = divide(r, p.by_ff_units);
    at.slab = kDownSlab;
    at.slot = v.misc->slot[j];
    at.unit = r - j * p.ff_units;
    at.of_units = p.ff_units;
  }
  return at;
}

__device__ __forceinline__ Place place_before(const StepArgs& p, uint32_t q) {
  Place at;
  at.group = divide(q, p.by_before);
  at.unit = at.image_unit = q - at.group * p.before_units;
  at.of_units = p.before_units;
  at.panel = blockIdx.x + at.group * gridDim.x;
  at.slab = kBeforeSlab;
  at.slot = 0;
  return at;
}
__device__ __forceinline__ uint32_t after_task(const StepArgs& p, uint32_t panel) {
  uint32_t t = 0;
#pragma unroll
  for (uint32_t k = 1; k < kMaxMatmulTasks; ++k) {
    if (k < p.n_after && panel >= p.first_panel[k]) t = k;
  }
  return t;
}
__device__ __forceinline__ Place place_after(const StepArgs& p, uint32_t q) {
  Place at;
  at.group = divide(q, p.by_units);
  at.unit = at.image_unit = q - at.group * p.units;
  at.of_units = p.units;
  const uint32_t panel = blockIdx.x + at.group * gridDim.x, t = after_task(p, panel);
  at.panel = panel - p.first_panel[t];
  at.slab = kAfterSlab + t;
  at.slot = 0;
  return at;
}
__device__ __forceinline__ Place place(const StepArgs& p, const View& v, uint32_t phase,
                                       uint32_t q) {
  if (phase == kBefore) return place_before(p, q);
  if (phase == kUp) return place_up(p, v, q);
  if (phase == kDown) return place_down(p, v, q);
  return place_after(p, q);
}

/// Ring of one warp, and which unit is copied next: the units of all phases in their order.
struct Ring {
  uint32_t base, barriers;
  uint32_t stage = 0, parity = 0;  // of the next unit to use
  uint32_t phase = kBefore, next = 0, left = 0;

  /// The next phases that have units, up to `last`.
  __device__ __forceinline__ void enter(const StepArgs& p, const View& v, uint32_t last) {
    while (left == 0 && phase < last) {
      ++phase;
      const Share s = share_of(p, phase, v.warp);
      next = s.begin;
      left = s.count;
    }
  }
  /// One lane: unit `next` of the phase into stage `to`.
  __device__ __forceinline__ void copy(const StepArgs& p, const View& v, uint32_t q,
                                       uint32_t to) const {
    const Place at = place(p, v, phase, q);
    if (at.slot < 0) {
      mbarrier_arrive(barriers + to * 8);
      return;
    }
    const Slab& s = p.slabs[at.slab];
    const uint32_t bytes = at.unit + 1 == at.of_units ? s.tail_bytes : s.unit_bytes;
    mbarrier_expect(barriers + to * 8, bytes);
    bulk_copy(base + to * p.stage_bytes,
              s.data + static_cast<uint64_t>(at.slot) * s.expert_bytes +
                  uint64_t{at.panel} * s.panel_bytes + uint64_t{at.unit} * s.unit_bytes,
              bytes, barriers + to * 8);
  }
  /// Fills all stages, of which none is in use. The whole warp; each lane one unit.
  __device__ __forceinline__ void fill(const StepArgs& p, const View& v, uint32_t last) {
    uint32_t to = stage;
    for (uint32_t k = 0; k < p.n_stages;) {
      enter(p, v, last);
      if (left == 0) return;
      const uint32_t n = min(left, p.n_stages - k);
      if (v.lane < n) {
        const uint32_t at = to + v.lane;
        copy(p, v, next + v.lane, at < p.n_stages ? at : at - p.n_stages);
      }
      to += n;
      if (to >= p.n_stages) to -= p.n_stages;
      next += n;
      left -= n;
      k += n;
    }
  }
  /// The stage of the unit that was used takes the next one.
  __device__ __forceinline__ void advance(const StepArgs& p, const View& v, uint32_t last) {
    __syncwarp();
    enter(p, v, last);
    if (left != 0) {
      if (v.lane == 0) copy(p, v, next, stage);
      ++next;
      --left;
    }
    if (++stage == p.n_stages) {
      stage = 0;
      parity ^= 1u;
    }
  }
};

/// The lane's view of the staged input.
struct ImageView {
  const uint8_t *x, *sums16, *sums32, *inverse;
};
__device__ __forceinline__ ImageView image_view(const uint8_t* image, uint32_t units,
                                                uint32_t lane) {
  const ImageMap m = image_map(1, units);
  const uint32_t t = lane % 4;
  return {image + t * 16, image + m.sums16 + t * 16, image + m.sums32 + t * 8, image + m.inverse};
}

/// One copy of every type's arithmetic serves both phases: code runs once per launch here, so it is
/// kept short.
__device__ __noinline__ float2 add_unit(GgmlType type, const uint8_t* unit, int n_blocks, Inputs in,
                                        const uint8_t* sums32, int lane, float2 sum) {
  float acc[4] = {sum.x, 0.0f, sum.y, 0.0f};
  if (type != GgmlType::kQ6_K) in.sums = sums32;
  switch (type) {
    case GgmlType::kQ8_0:
      unit_product<GgmlType::kQ8_0, true>(unit, n_blocks, in, lane, acc);
      break;
    case GgmlType::kQ4_0:
      unit_product<GgmlType::kQ4_0, true>(unit, n_blocks, in, lane, acc);
      break;
    case GgmlType::kQ4_1:
      unit_product<GgmlType::kQ4_1, true>(unit, n_blocks, in, lane, acc);
      break;
    case GgmlType::kQ5_0:
      unit_product<GgmlType::kQ5_0, true>(unit, n_blocks, in, lane, acc);
      break;
    case GgmlType::kQ5_1:
      unit_product<GgmlType::kQ5_1, true>(unit, n_blocks, in, lane, acc);
      break;
    case GgmlType::kQ4_K:
      unit_product<GgmlType::kQ4_K, true>(unit, n_blocks, in, lane, acc);
      break;
    case GgmlType::kQ5_K:
      unit_product<GgmlType::kQ5_K, true>(unit, n_blocks, in, lane, acc);
      break;
    default:
      unit_product<GgmlType::kQ6_K, true>(unit, n_blocks, in, lane, acc);
      break;
  }
  return {acc[0], acc[2]};
}

/// The warp's units of a phase; sums of its pieces of panels go to shared memory. Group and warp
/// only ever grow along the units, and never stay both: their sum is a slot of its own.
__device__ __forceinline__ void run_phase(const StepArgs& p, const View& v, Ring& ring,
                                          uint32_t phase) {
  const Share share = share_of(p, phase, v.warp);
  const uint32_t units = phase == kDown ? p.row_units : phase == kBefore ? p.before_units : p.units;
  const ImageView in = image_view(v.shared + p.image, units, v.lane);
  auto* part = reinterpret_cast<float*>(v.shared + p.part);
  const uint8_t* stages = v.shared + v.warp * p.n_stages * p.stage_bytes;
  float2 acc = {};
  uint32_t group = ~0u;
  const auto put_down = [&] {
    if (group == ~0u || v.lane % 4 != 0) return;
    float* to = part + (group + v.warp) * kPanelRows + v.lane / 4;
    to[0] = acc.x;
    to[8] = acc.y;
  };
#pragma unroll 1
  for (uint32_t k = 0; k < share.count; ++k) {
    const Place at = place(p, v, phase, share.begin + k);
    if (at.group != group) {
      put_down();
      acc = {};
      group = at.group;
    }
    mbarrier_wait(ring.barriers + ring.stage * 8, ring.parity);
    if (at.slot >= 0) {
      const uint32_t n_in = phase == kBefore         ? p.before_in
                            : phase != kDown         ? p.n_embd
                            : at.slab == kSharedDown ? p.d_shared
                                                     : p.d_ff;
      const int n_blocks = static_cast<int>(min(8u, n_in / 32 - at.unit * 8));
      const uint32_t u = at.image_unit;
      acc = add_unit(p.slabs[at.slab].type, stages + ring.stage * p.stage_bytes, n_blocks,
                     {in.x + u * kUnitColumns * 2, in.sums16 + u * 64,
                      reinterpret_cast<const float*>(in.inverse + u * 4)},
                     in.sums32 + u * 32, static_cast<int>(v.lane), acc);
    }
    ring.advance(p, v, phase == kBefore ? kBefore : kAfter);
  }
  put_down();
}

/// Sum of row `r` of a group over the warps that have pieces of it, in order.
__device__ __forceinline__ float group_sum(const StepArgs& p, const uint8_t* shared, uint32_t all,
                                           uint32_t group, uint32_t units, uint32_t r) {
  const float* part = reinterpret_cast<const float*>(shared + p.part) + group * kPanelRows + r;
  const uint32_t first = group * units, end = first + units;
  float sum = 0.0f;
#pragma unroll
  for (uint32_t w = 0; w < kWarps; ++w) {
    const uint32_t a = max(begin_of(all, w), first), b = min(begin_of(all, w + 1), end);
    if (a < b) sum += part[w * kPanelRows];
  }
  return sum;
}

/// 1 / rms of the staged row of n_embd, from the squares of its units.
__device__ __forceinline__ float norm_factor(const StepArgs& p, const View& v, const float* weight,
                                             float eps) {
  if (weight == nullptr) return 1.0f;
  const auto* squares =
      reinterpret_cast<const float*>(v.shared + p.image + image_map(1, p.units).squares);
  float sum = 0.0f;
#pragma unroll 8
  for (uint32_t u = 0; u < p.units; ++u) sum += squares[u];
  return rsqrtf(sum / static_cast<float>(p.n_embd) + eps);
}

}  // namespace sharpi::cuda::step
