// SPDX-License-Identifier: MIT
// The inside of moe_step.cu: what its launch says, where a block's units are, and what a warp makes
// of its own.
// Thread rule: device code.
#pragma once

#include <type_traits>

#include "cuda/kernels/moe/moe_exchange.cuh"
#include "cuda/kernels/moe/moe_step_plan.h"
#include "cuda/kernels/moe/route_row.cuh"
#include "cuda/kernels/products/fixed_rows.cuh"
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
  SlotTurn turn;                                                // of the next unit to use
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
    const Note note = v.slots->note[v.warp][turn.slot];
    if constexpr (kBulk) {
      mbarrier_wait(full(v, turn.slot), turn.parity);
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
    turn.next();
  }
};

/// What a lane has of a warp's piece of a group.
template <uint32_t kRows>
struct Piece {
  using Sums = std::conditional_t<kRows == 1, FixedSums, RowSums<kRows == 1 ? 2 : kRows>>;
  Sums sums;
  bool first;  // it begins the group
};
template <uint32_t kRows>
__device__ __forceinline__ void leave_piece(const StepArgs& p, const View<kRows>& v, uint32_t group,
                                            bool last, const Piece<kRows>& piece) {
  float* to = piece_at(v.shared + p.part, (group + v.warp) * kRows);
  if constexpr (kRows == 1) {
    to += v.lane / 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float sum = row_sum(piece.sums.part[h]);
      if (v.lane % 4 == 0) to[8 * h] = sum;
    }
  } else {
    leave_row_sums<kRows>(to, static_cast<int>(v.lane), piece.sums);
  }
  if (v.lane == 0) mark_piece(v.shared + p.range, group, v.warp, piece.first, last);
}

/// One copy of every type's arithmetic serves all phases: code runs once per launch here, so it is
/// kept short.
template <uint32_t kRows, class Inputs>
__device__ __forceinline__ void add_unit(GgmlType type, const uint8_t* unit, const Inputs& in,
                                         int lane, typename Piece<kRows>::Sums& sums) {
  static_assert(kBranchIsWhole<FixedTypes, GgmlType::kQ4_K, GgmlType::kQ6_K, GgmlType::kQ5_K,
                               GgmlType::kQ8_0, GgmlType::kQ4_0>);
  const auto add = [&]<GgmlType kType>() {
    const MemoryUnit<kType> at{unit, lane};
    if constexpr (kRows == 1) {
      FixedProduct<kType>::add(at, in, lane, sums);
    } else {
      FixedRows<kType, kRows>::add(at, in, lane, sums);
    }
  };
  if (type == GgmlType::kQ4_K) {
    add.template operator()<GgmlType::kQ4_K>();
  } else if (type == GgmlType::kQ6_K) {
    add.template operator()<GgmlType::kQ6_K>();
  } else if (type == GgmlType::kQ5_K) {
    add.template operator()<GgmlType::kQ5_K>();
  } else if (type == GgmlType::kQ8_0) {
    add.template operator()<GgmlType::kQ8_0>();
  } else {
    add.template operator()<GgmlType::kQ4_0>();
  }
}

/// The unit of the staged rows that unit u of a phase's panels multiplies. Several rows: of an
/// expert that a row did not choose it has zeros.
template <uint32_t kRows>
struct StagedUnits {
  const StepArgs& p;
  const View<kRows>& v;
  uint32_t units;   // of the image
  uint32_t routed;  // of down: units of the rows' experts

  __device__ __forceinline__ StagedUnits(const StepArgs& args, const View<kRows>& view,
                                         uint32_t phase, uint32_t staged)
      : p(args), v(view), units(staged), routed(phase == kDown ? routed_units(args, view) : 0) {}
  /// Of a row's own units; kNothing: it does not have this one.
  __device__ __forceinline__ uint32_t own(uint32_t u, uint32_t row) const {
    if (routed == 0) return u;
    if (u >= routed) return u - routed + p.routed_units;
    const uint32_t expert = divide(u, p.by_ff_units), j = v.misc->own_number[expert][row];
    return j == kNobody ? kNothing : j * p.ff_units + u - expert * p.ff_units;
  }
  __device__ __forceinline__ ApartInputs<kRows> operator()(uint32_t u) const {
    const uint32_t of_columns = v.lane / 8 % kRows, of_sums = v.lane % 4 % kRows;
    const uint32_t a = own(u, of_columns), b = own(u, of_sums);
    const FixedMap map = fixed_map(units);
    const uint32_t row = p.image + of_sums * p.image_bytes;
    const uint32_t x = a == kNothing ? p.zeros : p.image + of_columns * p.image_bytes + a * 512,
                   sums = b == kNothing ? p.zeros : row + map.sums + b * 32,
                   inverse = b == kNothing ? p.zeros : row + map.inverse + b * 4;
    return {v.shared + x + v.lane % 8 * 8, reinterpret_cast<const float*>(v.shared + sums),
            reinterpret_cast<const float*>(v.shared + inverse)};
  }
};
template <>
struct StagedUnits<1> {
  const uint8_t* x;
  const float *sums, *inverse;

  __device__ __forceinline__ StagedUnits(const StepArgs& p, const View<1>& v, uint32_t,
                                         uint32_t units) {
    const FixedMap map = fixed_map(units);
    const uint8_t* image = v.shared + p.image;
    x = image + v.lane / 4 % 2 * 32 + v.lane % 4 * 8;
    sums = reinterpret_cast<const float*>(image + map.sums);
    inverse = reinterpret_cast<const float*>(image + map.inverse);
  }
  __device__ __forceinline__ FixedInputs operator()(uint32_t u) const {
    return {x + u * 512, sums + u * 8, inverse[u]};
  }
};

/// The last phase whose units may be fetched in a phase: the experts are known from kUp on.
__device__ __forceinline__ uint32_t last_to_fetch(uint32_t phase) {
  return phase == kBefore ? kBefore : kAfter;
}

/// The warp's units of a phase; sums of its pieces of groups go to shared memory.
template <uint32_t kRows, bool kSmall>
__device__ __forceinline__ void run_phase(const StepArgs& p, const View<kRows>& v,
                                          Ring<kRows, kSmall>& ring, uint32_t phase) {
  const uint32_t count = share_of(p, v, phase).count;
  const uint32_t staged = phase == kDown     ? p.row_units
                          : phase == kBefore ? p.before_units
                                             : p.units;
  const uint32_t units = phase == kDown ? down_units(p, v) : staged;
  const StagedUnits<kRows> inputs(p, v, phase, staged);
  const uint8_t* stages = v.shared + v.warp * p.ring_bytes;
  Piece<kRows> piece = {};
#pragma unroll 1
  for (uint32_t k = 0; k < count; ++k) {
    // What is there comes before what there is room for.
    if (k != 0 || ring.under_way == 0) ring.fetch(p, v, last_to_fetch(phase));
    const Note note = ring.take(v);
    const uint32_t u = Line::unit(note.use);
    if (k == 0 || u == 0) piece = {{}, u == 0};
    if (note.at != kNothing) {
      add_unit<kRows>(Line::type(note.use), stages + note.at, inputs(u), static_cast<int>(v.lane),
                      piece.sums);
    }
    ring.give_back(note.taken);
    const bool last = u + 1 == units;
    if (last || k + 1 == count) leave_piece(p, v, Line::group(note.use), last, piece);
  }
}

/// The first warp's piece of a group of the warp's row, from row lane % 16 of the panel on.
template <uint32_t kRows>
__device__ __forceinline__ const float* pieces_of(const StepArgs& p, const View<kRows>& v,
                                                  uint32_t group) {
  return reinterpret_cast<const float*>(v.shared + p.part) +
         (group * kRows + v.row()) * kPanelRows + v.lane % kPanelRows;
}
/// Sum of row lane % 16 of a group over the warps that have pieces of it: each half of the warp
/// takes every other one. In every lane.
template <uint32_t kRows>
__device__ __forceinline__ float group_sum(const StepArgs& p, const View<kRows>& v,
                                           uint32_t group) {
  const float* part = pieces_of(p, v, group);
  const uint2 range = warps_of(v.shared + p.range, group);
  constexpr uint32_t kOfHalf = kShareWarps / 2;
  float piece[kOfHalf], sum = 0.0f;
#pragma unroll
  for (uint32_t k = 0; k < kOfHalf; ++k) {
    const uint32_t w = range.x + v.lane / kPanelRows + 2 * k;
    piece[k] = w <= range.y ? part[w * (kRows * kPanelRows)] : 0.0f;
  }
#pragma unroll
  for (uint32_t k = 0; k < kOfHalf; ++k) sum += piece[k];
  return sum + __shfl_xor_sync(~0u, sum, 16);
}

/// The same by one half of a warp, all pieces.
template <uint32_t kRows>
__device__ __forceinline__ float whole_sum(const StepArgs& p, const View<kRows>& v,
                                           uint32_t group) {
  const float* part = pieces_of(p, v, group);
  const uint2 range = warps_of(v.shared + p.range, group);
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t first = range.x; first <= range.y; first += 4) {
    float piece[4];
#pragma unroll
    for (uint32_t k = 0; k < 4; ++k)
      piece[k] = first + k <= range.y ? part[(first + k) * (kRows * kPanelRows)] : 0.0f;
    sum += (piece[0] + piece[1]) + (piece[2] + piece[3]);
  }
  __syncwarp();
  return sum;
}

/// 1 / rms of the warp's row of n_embd.
template <uint32_t kRows>
__device__ __forceinline__ float norm_factor(const StepArgs& p, const View<kRows>& v, bool norm,
                                             float eps) {
  if (!norm) return 1.0f;
  float sum = 0.0f;
#pragma unroll
  for (uint32_t w = 0; w < kRowWarps<kRows>; ++w) sum += v.misc->squares[w * kRows + v.row()];
  return rsqrtf(sum / static_cast<float>(p.n_embd) + eps);
}

}  // namespace sharpi::cuda::step
