// SPDX-License-Identifier: MIT
// A mixture-of-experts block of one row: y (+)= sum_j w_j down_j(act(gate_j x) * up_j x), the
// shared expert among the j; before it the mixer's output product, after it the next mixer's input
// products, if the caller has them. One block per multiprocessor, all of them at once:
//   x += W m | router rows -> logits | top-k in every block, so that nobody waits for one | pairs
//   of gate and up panels -> h | panels of down over all experts as one long row -> y | products of
//   y
// Block b takes panels (pairs, rows) b, b + grid, ... Between phases values go through device
// memory: whoever needs one reads it until it is no longer the bits of kUnset. There are two such
// areas; a launch uses one and clears the other, and the word in front says which. Every block
// leaves a logit, so that who has seen all of them knows that all have read that word.
// The 16 warps of a block share each phase's units (16 x 256) evenly and stream them through rings
// of their own: constant weights from before the grid dependency resolves, experts' from the moment
// they are known; copies run ahead through all phases. Arithmetic of the units as in matvec.cu.
// Bound: weights of the active experts / memory bandwidth, and a chain of latencies.
#include <algorithm>

#include "cuda/kernels/gemm.h"
#include "cuda/kernels/launch.h"
#include "cuda/kernels/matvec.h"
#include "cuda/kernels/moe_step.h"
#include "cuda/kernels/ptx.cuh"
#include "cuda/kernels/route_row.cuh"
#include "cuda/kernels/router.h"
#include "cuda/kernels/unit_product.cuh"

namespace sharpi::cuda {
namespace {

constexpr uint32_t kWarps = 16;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kMaxStages = 4;
constexpr uint32_t kHeadBytes = 128;  // before the areas
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
  uint32_t area;                           // words of one area
  uint32_t at_x, at_h, at_shared_h, at_y;  // in it; logits are first
  uint32_t n_embd, d_ff, d_shared, n_experts, n_used, before_in;
  uint32_t router_rows, entries,
      slices;  // rows; what is left by all blocks; warps that share a row
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

/// What no result ever is: the NaN of arithmetic is another.
constexpr uint32_t kUnset = 0xFFFFFFFFu, kPlainNan = 0x7FFFFFFFu;

struct Misc {
  float2 router[kWarps];              // partial dot and squares
  float weight[kMaxExpertsUsed + 1];  // [n_used]: of the shared expert
  int32_t slot[kMaxExpertsUsed];
};

__device__ __forceinline__ uint4 fresh_bits(const uint32_t* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ bool is_set(const uint4& v) {
  return v.x != kUnset && v.y != kUnset && v.z != kUnset && v.w != kUnset;
}
__device__ __forceinline__ float4 as_floats(const uint4& v) {
  return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}
__device__ __forceinline__ float wait_for(const uint32_t* from) {
  uint32_t v;
  do {
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  } while (v == kUnset);
  return __uint_as_float(v);
}
__device__ __forceinline__ void leave(uint32_t* to, float value) {
  const uint32_t bits = __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to),
               "r"(bits == kUnset ? kPlainNan : bits)
               : "memory");
}

/// Where a unit is, and what it multiplies.
struct Place {
  uint32_t slab;
  int32_t slot;  // negative: nowhere, the expert is skipped
  uint32_t panel, unit, of_units;
  uint32_t image_unit, group;  // group: panel or member of a pair within the block
};

enum Phase : uint32_t { kBefore, kUp, kDown, kAfter, kPhases };

struct View {
  uint8_t* shared;
  const Misc* misc;
  uint32_t* area;  // of this launch
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

/// A row that is complete, or one whose elements appear while it is read.
struct RowRef {
  const uint32_t* bits;
  bool appears;
};
__device__ __forceinline__ RowRef complete(const float* x) {
  return {reinterpret_cast<const uint32_t*>(x), false};
}

/// Eight columns of a lane, read until they are there.
__device__ __forceinline__ LaneInputs wait_inputs(const RowRef& x, uint32_t column, uint32_t n) {
  uint4 v[2];
  bool ready;
  do {
    ready = true;
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
      const uint32_t c = column + 128 * k;
      v[k] = c < n ? fresh_bits(x.bits + c) : uint4{};
      ready = ready && (!x.appears || is_set(v[k]));
    }
  } while (!ready);
  return {{as_floats(v[0]), as_floats(v[1])}};
}
__device__ __forceinline__ LaneInputs all_of(float w) {
  return {{{w, w, w, w}, {w, w, w, w}}};
}

/// Unit u of the long row of down: the shared expert's, then the routed ones'.
__device__ __forceinline__ LaneInputs hidden_inputs(const StepArgs& p, const View& v, uint32_t u) {
  const uint32_t lane4 = v.lane * 4;
  if (u < p.shared_units)
    return wait_inputs({v.area + p.at_shared_h, true}, u * kUnitColumns + lane4, p.d_shared);
  const uint32_t r = u - p.shared_units, j = divide(r, p.by_ff_units);
  if (v.misc->slot[j] < 0) return {};
  return wait_inputs({v.area + p.at_h + j * p.d_ff, true},
                     (r - j * p.ff_units) * kUnitColumns + lane4, p.d_ff);
}
__device__ __forceinline__ float hidden_weight(const StepArgs& p, const View& v, uint32_t u) {
  if (u < p.shared_units) return v.misc->weight[p.n_used];
  return v.misc->weight[divide(u - p.shared_units, p.by_ff_units)];
}

/// A warp's slice of one of the block's router rows.
struct RouterShare {
  const float4* w;
  uint32_t begin, end;  // float4s
  __device__ __forceinline__ RouterShare(const StepArgs& p, uint32_t warp) {
    const uint32_t row = blockIdx.x + warp / p.slices * gridDim.x, n4 = p.n_embd / 4;
    const float* data = row < p.n_experts ? p.router + uint64_t{row} * p.n_embd : p.shared_gate;
    w = reinterpret_cast<const float4*>(data);
    const uint32_t slice = warp % p.slices, each = (n4 + p.slices - 1) / p.slices;
    begin = min(slice * each, n4);
    end = row < p.router_rows ? min(begin + each, n4) : begin;
  }
  __device__ __forceinline__ float4 weight(const StepArgs& p, uint32_t i) const {
    if (i >= end) return {};
    float4 a = w[i];
    if (p.norm_weight != nullptr) {
      const float4 n = reinterpret_cast<const float4*>(p.norm_weight)[i];
      a = {a.x * n.x, a.y * n.y, a.z * n.z, a.w * n.w};
    }
    return a;
  }
};

/// Partial dot product and squares of a warp's slice of x.
__device__ __forceinline__ float2 router_slice(const StepArgs& p, const RouterShare& share,
                                               const float4 (&kept)[kKept], const RowRef& row,
                                               uint32_t lane) {
  float2 sum = {};
  const auto add = [&](float4 a, const uint4& bits) {
    const float4 x = as_floats(bits);
    sum.x = fmaf(a.x, x.x, fmaf(a.y, x.y, fmaf(a.z, x.z, fmaf(a.w, x.w, sum.x))));
    sum.y = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum.y))));
  };
  uint4 bits[kKept];
  bool ready;
  do {
    ready = true;
#pragma unroll
    for (uint32_t k = 0; k < kKept; ++k) {
      const uint32_t i = share.begin + lane + 32 * k;
      bits[k] = i < share.end ? fresh_bits(row.bits + 4 * i) : uint4{};
      ready = ready && (!row.appears || is_set(bits[k]));
    }
  } while (!ready);
#pragma unroll
  for (uint32_t k = 0; k < kKept; ++k) add(kept[k], bits[k]);
  for (uint32_t i = share.begin + lane + 32 * kKept; i < share.end; i += 32) {
    uint4 more = fresh_bits(row.bits + 4 * i);
    while (row.appears && !is_set(more)) more = fresh_bits(row.bits + 4 * i);
    add(share.weight(p, i), more);
  }
  return {warp_sum(sum.x), warp_sum(sum.y)};
}

/// Warp 0: the block's logits to everybody. Lane r * slices + k: slice k of the block's row r.
__device__ __forceinline__ void leave_logits(const StepArgs& p, const View& v) {
  float2 sum = v.lane < kWarps ? v.misc->router[v.lane] : float2{};
  for (uint32_t d = 1; d < p.slices; d *= 2) {
    sum.x += __shfl_xor_sync(~0u, sum.x, static_cast<int>(d));
    sum.y += __shfl_xor_sync(~0u, sum.y, static_cast<int>(d));
  }
  const uint32_t row = blockIdx.x + v.lane / p.slices * gridDim.x;
  if (v.lane >= kWarps || v.lane % p.slices != 0 || row >= p.entries) return;
  if (p.norm_weight != nullptr) sum.x *= rsqrtf(sum.y / static_cast<float>(p.n_embd) + p.norm_eps);
  if (row >= p.router_rows) sum.x = 0.0f;
  leave(v.area + row, row == p.n_experts ? 1.0f / (1.0f + expf(-sum.x)) : sum.x);
}

template <uint32_t kPerLane>
__device__ __forceinline__ Choice choose(const StepArgs& p, const View& v) {
  float logit[kPerLane];
  bool ready;
  do {
    ready = true;
#pragma unroll
    for (uint32_t n = 0; n < kPerLane; ++n) {
      const uint32_t id = n * 32 + v.lane;
      uint32_t bits = 0;
      if (id < p.n_experts) {
        asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                     : "=r"(bits)
                     : "l"(v.area + id)
                     : "memory");
      }
      logit[n] = __uint_as_float(bits);
      ready = ready && bits != kUnset;
    }
  } while (!ready);
  return route_row<kPerLane>(logit, p.n_experts, p.n_used, p.renormalize, v.lane);
}
/// Warp 0: the experts, once all logits are there.
__device__ __forceinline__ void choose_experts(const StepArgs& p, const View& v, Misc& misc) {
  const Choice c = p.n_experts <= 128   ? choose<4>(p, v)
                   : p.n_experts <= 256 ? choose<8>(p, v)
                                        : choose<kMaxExperts / 32>(p, v);
  float scale = 1.0f;
  for (uint32_t i = p.n_experts + v.lane; i < p.entries; i += 32) {
    const float entry = wait_for(v.area + i);
    if (i == p.n_experts && p.shared_gate != nullptr) scale = entry;
  }
  if (v.lane == 0) misc.weight[p.n_used] = scale;
  if (v.lane >= p.n_used) return;
  const auto id = static_cast<int32_t>(c.id);
  misc.slot[v.lane] = p.slot_of_expert != nullptr ? p.slot_of_expert[id] : id;
  misc.weight[v.lane] = c.weight;
  if (blockIdx.x == 0) {
    p.ids[v.lane] = id;
    p.weights[v.lane] = c.weight;
  }
}

/// Stages `row` under a norm; warps from `first` on.
__device__ __forceinline__ void stage_row(const StepArgs& p, const View& v, const RowRef& row,
                                          uint32_t n_in, uint32_t units, const float* weight,
                                          uint32_t first) {
  const ImageMap map = image_map(1, units);
  for (uint32_t u = v.warp - first; u < units; u += kWarps - first) {
    const uint32_t c = u * kUnitColumns + v.lane * 4;
    const LaneInputs w = weight != nullptr ? load_inputs(weight, c, n_in) : all_of(1.0f);
    stage_unit(v.shared + p.image, map, 1, u, 0, wait_inputs(row, c, n_in), w, v.lane);
  }
}
__device__ __forceinline__ void stage_hidden(const StepArgs& p, const View& v) {
  const ImageMap map = image_map(1, p.row_units);
#pragma unroll 1
  for (uint32_t u = v.warp; u < p.row_units; u += kWarps) {
    const LaneInputs in = hidden_inputs(p, v, u);
    stage_unit(v.shared + p.image, map, 1, u, 0, in, all_of(hidden_weight(p, v, u)), v.lane);
  }
}

/// act(gate) * up of the block's pairs.
__device__ __forceinline__ void leave_hidden(const StepArgs& p, const View& v) {
  const uint32_t r = threadIdx.x % kPanelRows, all = block_units(p, kUp);
  const float norm = norm_factor(p, v, p.norm_weight, p.norm_eps);
  for (uint32_t k = threadIdx.x / kPanelRows; 2 * k * p.units < all; k += kThreads / kPanelRows) {
    const float gate = group_sum(p, v.shared, all, 2 * k, p.units, r) * norm,
                up = group_sum(p, v.shared, all, 2 * k + 1, p.units, r) * norm;
    const float h = gated_value(p.activation, gate, up);
    uint32_t pair = blockIdx.x + k * gridDim.x;
    if (pair < p.shared_pairs) {
      leave(v.area + p.at_shared_h + pair * kPanelRows + r, h);
      continue;
    }
    pair -= p.shared_pairs;
    const uint32_t j = divide(pair, p.by_panels);
    leave(v.area + p.at_h + j * p.d_ff + (pair - j * p.by_panels.divisor) * kPanelRows + r, h);
  }
}
/// The products of y.
__device__ __forceinline__ void store_after(const StepArgs& p, const View& v) {
  const uint32_t r = threadIdx.x % kPanelRows, all = block_units(p, kAfter);
  const float norm = norm_factor(p, v, p.after_norm, p.after_eps);
  for (uint32_t k = threadIdx.x / kPanelRows; k * p.units < all; k += kThreads / kPanelRows) {
    const uint32_t panel = blockIdx.x + k * gridDim.x;
    const uint32_t t = after_task(p, panel);
    p.after_y[t][(panel - p.first_panel[t]) * kPanelRows + r] =
        group_sum(p, v.shared, all, k, p.units, r) * norm;
  }
}

/// Logits to everybody, and the experts; meanwhile the other warps stage x, and clear what the next
/// launch uses.
__device__ __forceinline__ void route_block(const StepArgs& p, const View& v, Misc& misc,
                                            const RowRef& row, const RouterShare& share,
                                            const float4 (&kept)[kKept], uint32_t launch) {
  const float2 slice = router_slice(p, share, kept, row, v.lane);
  if (v.lane == 0) misc.router[v.warp] = slice;
  __syncthreads();
  if (v.warp == 0) {
    leave_logits(p, v);
    choose_experts(p, v, misc);
    return;
  }
  // A block without pairs does not need x, and must not read it: nobody waits for it.
  if (groups_of(p.pairs) != 0) stage_row(p, v, row, p.n_embd, p.units, p.norm_weight, 1);
  uint32_t* other = p.sync + kHeadBytes / 4 + (~launch & 1) * p.area;
  for (uint32_t i = blockIdx.x * (kThreads - 32) + threadIdx.x - 32; i < p.area;
       i += gridDim.x * (kThreads - 32))
    other[i] = kUnset;
}

__global__ void __launch_bounds__(kThreads, 1) moe_step_kernel(const __grid_constant__ StepArgs p) {
  extern __shared__ __align__(128) uint8_t shared[];
  auto& misc = *reinterpret_cast<Misc*>(shared + p.misc);
  View v;
  v.shared = shared;
  v.misc = &misc;
  v.warp = threadIdx.x / 32;
  v.lane = threadIdx.x % 32;
  Ring ring;
  ring.base = shared_address(shared) + v.warp * p.n_stages * p.stage_bytes;
  ring.barriers = shared_address(shared) + p.barriers + v.warp * p.n_stages * 8;
  if (v.lane < p.n_stages) mbarrier_init(ring.barriers + v.lane * 8, 1);
  mbarrier_init_fence();
  __syncwarp();
  const Share first = share_of(p, kBefore, v.warp);
  ring.next = first.begin;
  ring.left = first.count;
  ring.fill(p, v, kBefore);
  const RouterShare share(p, v.warp);
  float4 kept[kKept];
#pragma unroll
  for (uint32_t k = 0; k < kKept; ++k) kept[k] = share.weight(p, share.begin + v.lane + 32 * k);
  grid_dependency_wait();
  const uint32_t launch = __ldcg(p.sync) + 1;
  v.area = p.sync + kHeadBytes / 4 + (launch & 1) * p.area;
  const uint32_t out = threadIdx.x / kPanelRows, r = threadIdx.x % kPanelRows,
                 o = (blockIdx.x + out * gridDim.x) * kPanelRows + r;
  const bool mine = out < groups_of(p.out_panels);
  float value = p.add && mine ? __ldcg(p.y + o) : 0.0f;
  RowRef row = complete(p.x);
  const uint32_t last = p.n_after != 0 ? kAfter : kDown;
#pragma unroll 1
  for (uint32_t phase = p.before_x != nullptr ? kBefore : kUp; phase <= last; ++phase) {
    if (phase == kUp) {
      route_block(p, v, misc, row, share, kept, launch);
    } else if (phase == kDown) {
      stage_hidden(p, v);
    } else if (phase == kBefore) {
      stage_row(p, v, complete(p.before_x), p.before_in, p.before_units, nullptr, 0);
    } else {
      stage_row(p, v, {v.area + p.at_y, true}, p.n_embd, p.units, p.after_norm, 0);
    }
    __syncthreads();
    if (phase == kUp) ring.fill(p, v, kAfter);
    run_phase(p, v, ring, phase);
    __syncthreads();
    if (phase == kUp) {
      leave_hidden(p, v);
      grid_dependents_launch();
      __syncthreads();  // nobody looks at x any more
    } else if (phase == kAfter) {
      store_after(p, v);
    } else if (mine) {
      const uint32_t units = phase == kBefore ? p.before_units : p.row_units;
      value += group_sum(p, shared, block_units(p, phase), out, units, r);
      if (phase == kDown) p.y[o] = value;
      if (phase != last) leave(v.area + (phase == kBefore ? p.at_x : p.at_y) + o, value);
    }
    if (phase == kBefore) row = {v.area + p.at_x, true};
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.sync = launch;
}

uint32_t div_up(uint32_t n, uint32_t d) {
  return (n + d - 1) / d;
}

Slab make_slab(const DeviceMatrix& w) {
  Slab s = {};
  if (!w) return s;
  const GgmlTypeTraits& traits = ggml_traits(w.type);
  s.data = reinterpret_cast<const uint8_t*>(w.data);
  s.expert_bytes = w.expert_bytes;
  s.panel_bytes = static_cast<uint32_t>(ggml_row_bytes(w.type, w.n_in) * kPanelRows);
  s.unit_bytes = kUnitColumns / traits.block_elements * traits.block_bytes * kPanelRows;
  s.tail_bytes = s.panel_bytes - (div_up(w.n_in, kUnitColumns) - 1) * s.unit_bytes;
  s.type = w.type;
  return s;
}

Groups groups_of_all(uint32_t all, uint32_t grid) {
  return {all / grid, all % grid};
}

void set_slabs(const MoeStepParams& m, StepArgs* p) {
  p->slabs[kGateSlab] = make_slab(m.moe.gate);
  p->slabs[kUpSlab] = make_slab(m.moe.up);
  p->slabs[kDownSlab] = make_slab(m.moe.down);
  p->slabs[kSharedGate] = make_slab(m.shared_gate);
  p->slabs[kSharedUp] = make_slab(m.shared_up);
  p->slabs[kSharedDown] = make_slab(m.shared_down);
  p->slabs[kBeforeSlab] = make_slab(m.before.tasks[0].w);
  p->n_after = m.after.n_tasks;
  for (uint32_t t = 0; t < m.after.n_tasks; ++t)
    p->slabs[kAfterSlab + t] = make_slab(m.after.tasks[t].w);
}

/// Where values are in an area; returns its words.
uint32_t shape_area(uint32_t n_sm, uint32_t n_experts, uint32_t n_embd, uint32_t hidden,
                    uint32_t shared_hidden, StepArgs* p) {
  p->at_x = (std::max(n_experts + 1, n_sm) + 3) / 4 * 4;
  p->at_y = p->at_x + n_embd;
  p->at_h = p->at_y + n_embd;
  p->at_shared_h = p->at_h + hidden;
  return (p->at_shared_h + shared_hidden + 3) / 4 * 4;
}

void shape_work(const MatmulConfig& config, const MoeStepParams& m, StepArgs* p) {
  const MoeParams& e = m.moe;
  const auto grid = static_cast<uint32_t>(config.n_sm);
  p->n_embd = e.gate.n_in;
  p->d_ff = e.gate.n_out;
  p->d_shared = m.shared_down ? m.shared_down.n_in : 0;
  p->n_experts = m.router.n_out;
  p->n_used = e.n_used;
  p->before_in = m.before.n_tasks != 0 ? m.before.tasks[0].w.n_in : kUnitColumns;
  p->router_rows = p->n_experts + (m.shared_gate_inp != nullptr ? 1 : 0);
  p->entries = std::max(p->router_rows, grid);
  p->slices = kWarps;
  while (p->slices > 1 && kWarps / p->slices * grid < p->router_rows) p->slices /= 2;
  p->units = div_up(p->n_embd, kUnitColumns);
  p->ff_units = div_up(p->d_ff, kUnitColumns);
  p->shared_units = div_up(p->d_shared, kUnitColumns);
  p->before_units = div_up(p->before_in, kUnitColumns);
  p->row_units = p->shared_units + p->n_used * p->ff_units;
  p->shared_pairs = p->d_shared / kPanelRows;
  p->pairs = groups_of_all(p->shared_pairs + p->n_used * (p->d_ff / kPanelRows), grid);
  p->out_panels = groups_of_all(p->n_embd / kPanelRows, grid);
  uint32_t after = 0;
  for (uint32_t t = 0; t < m.after.n_tasks; ++t) {
    p->first_panel[t] = after;
    after += m.after.tasks[t].w.n_out / kPanelRows;
  }
  p->after_panels = groups_of_all(after, grid);
  p->by_units = make_divider(p->units);
  p->by_panels = make_divider(p->d_ff / kPanelRows);
  p->by_row_units = make_divider(p->row_units);
  p->by_ff_units = make_divider(p->ff_units);
  p->by_before = make_divider(p->before_units);
}

/// The division of work and of shared memory; returns the bytes of it, 0: it does not fit.
uint32_t shape_step(const MatmulConfig& config, const MoeStepParams& m, StepArgs* p) {
  set_slabs(m, p);
  shape_work(config, m, p);
  for (const Slab& s : p->slabs)
    p->stage_bytes = std::max(p->stage_bytes, std::min(s.unit_bytes, s.panel_bytes));
  const uint32_t groups =
      std::max({2 * (p->pairs.each + 1), p->out_panels.each + 1, p->after_panels.each + 1});
  uint32_t image = 0;
  for (const uint32_t units : {p->units, p->row_units, p->before_units})
    image = std::max(image, image_map(1, units).bytes);
  const uint32_t part = (groups + kWarps) * kPanelRows * 4,
                 misc = (static_cast<uint32_t>(sizeof(Misc)) + 15) / 16 * 16;
  for (p->n_stages = kMaxStages; p->n_stages >= 2; --p->n_stages) {
    p->image = kWarps * p->n_stages * p->stage_bytes;
    p->part = p->image + image;
    p->misc = p->part + part;
    p->barriers = p->misc + misc;
    const uint32_t bytes = p->barriers + kWarps * p->n_stages * 8;
    if (bytes <= static_cast<uint32_t>(config.max_shared_bytes)) return bytes;
  }
  return 0;
}

bool in_tiles(const DeviceMatrix& w) {
  return w && w.layout == WeightLayout::kTiles && w.n_out % kPanelRows == 0 && w.n_in % 32 == 0;
}

/// The products in front and behind.
bool neighbours_agree(const MoeStepParams& m) {
  const MatmulParams &b = m.before, &a = m.after;
  bool ok = b.n_tasks <= 1 && a.n_tasks <= kMaxMatmulTasks;
  if (b.n_tasks != 0) {
    ok = ok && in_tiles(b.tasks[0].w) && b.tasks[0].w.n_out == m.moe.gate.n_in &&
         b.epilogue == Epilogue::kAdd && b.tasks[0].y == m.moe.x && b.norm_weight == nullptr &&
         b.row_scale == nullptr && b.n_rows == 1 && !b.force_f32 && m.moe.add;
  }
  if (a.n_tasks != 0) {
    ok = ok && a.epilogue == Epilogue::kStore && a.x == m.moe.y && a.row_scale == nullptr &&
         a.n_rows == 1 && !a.force_f32;
  }
  for (uint32_t t = 0; ok && t < a.n_tasks; ++t)
    ok = in_tiles(a.tasks[t].w) && a.tasks[t].w.n_in == m.moe.gate.n_in;
  return ok && (!m.moe.add || m.moe.x == m.moe.y);
}

bool shapes_agree(const MoeStepParams& m) {
  const MoeParams& e = m.moe;
  bool ok = e.n_rows == 1 && e.n_used != 0 && e.n_used <= kMaxExpertsUsed &&
            is_gated_epilogue(e.activation) && m.router.type == GgmlType::kF32 &&
            m.router.layout == WeightLayout::kRows && m.router.n_in == e.gate.n_in &&
            e.n_used <= m.router.n_out && m.router.n_out <= kMaxExperts;
  const auto expert = [&](const DeviceMatrix& gate, const DeviceMatrix& up,
                          const DeviceMatrix& down) {
    ok = ok && in_tiles(gate) && in_tiles(up) && in_tiles(down) && gate.n_out == up.n_out &&
         gate.n_in == up.n_in && down.n_in == gate.n_out && down.n_out == gate.n_in;
  };
  expert(e.gate, e.up, e.down);
  if (m.shared_down) {
    expert(m.shared_gate, m.shared_up, m.shared_down);
    ok = ok && m.shared_gate.n_in == e.gate.n_in;
  } else {
    ok = ok && m.shared_gate_inp == nullptr;
  }
  return ok && neighbours_agree(m);
}

}  // namespace

uint64_t moe_step_sync_bytes(const MatmulConfig& config, uint32_t n_experts, uint32_t n_embd,
                             uint32_t hidden, uint32_t shared_hidden) {
  StepArgs p = {};
  const uint64_t area =
      shape_area(static_cast<uint32_t>(config.n_sm), n_experts, n_embd, hidden, shared_hidden, &p);
  return kHeadBytes + 2 * area * sizeof(uint32_t);
}

bool moe_step_takes(const MatmulConfig& config, const MoeStepParams& m) {
  if (config.exact || config.deterministic || config.compute_capability < 90) return false;
  if (!shapes_agree(m)) return false;
  StepArgs p = {};
  const auto grid = static_cast<uint32_t>(config.n_sm);
  return shape_step(config, m, &p) != 0 && kWarps / p.slices * grid >= p.router_rows &&
         p.out_panels.each < kThreads / kPanelRows &&
         m.sync_bytes >=
             moe_step_sync_bytes(config, p.n_experts, p.n_embd, p.n_used * p.d_ff, p.d_shared);
}

Status launch_moe_step(const MatmulConfig& config, const MoeStepParams& m, cudaStream_t stream) {
  const MoeParams& e = m.moe;
  if (!moe_step_takes(config, m) || reinterpret_cast<uintptr_t>(e.x) % 16 != 0 ||
      reinterpret_cast<uintptr_t>(m.sync) % kHeadBytes != 0) {
    return Status::error(Code::kInternal, "moe_step: %u of %u experts, %u x %u", e.n_used,
                         m.router.n_out, e.gate.n_out, e.gate.n_in);
  }
  StepArgs p = {};
  LaunchShape shape;
  shape.shared_bytes = shape_step(config, m, &p);
  shape_area(static_cast<uint32_t>(config.n_sm), p.n_experts, p.n_embd, p.n_used * p.d_ff,
             p.d_shared, &p);
  // The areas are where the largest of the launches that share them has them.
  p.area = static_cast<uint32_t>((m.sync_bytes - kHeadBytes) / (2 * sizeof(uint32_t)) / 4 * 4);
  p.x = e.x;
  p.norm_weight = e.norm_weight;
  p.norm_eps = e.norm_eps;
  p.renormalize = m.renormalize;
  p.add = e.add;
  p.activation = e.activation;
  p.router = reinterpret_cast<const float*>(m.router.data);
  p.shared_gate = m.shared_gate_inp;
  p.slot_of_expert = e.slot_of_expert;
  p.y = e.y;
  p.weights = m.weights;
  p.ids = m.ids;
  p.sync = reinterpret_cast<uint32_t*>(m.sync);
  if (m.before.n_tasks != 0) p.before_x = m.before.x;
  p.after_norm = m.after.norm_weight;
  p.after_eps = m.after.norm_eps;
  for (uint32_t t = 0; t < m.after.n_tasks; ++t) p.after_y[t] = m.after.tasks[t].y;
  shape.grid = dim3(static_cast<uint32_t>(config.n_sm));
  shape.block = dim3(kThreads);
  shape.stream = stream;
  shape.pdl = config.pdl;
  shape.cooperative = true;
  return launch_kernel("moe_step", shape, moe_step_kernel, p);
}

Status prepare_moe_step(const MatmulConfig& config) {
  return kernel_status(
      cudaFuncSetAttribute(moe_step_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           config.max_shared_bytes),
      "moe_step");
}

}  // namespace sharpi::cuda
