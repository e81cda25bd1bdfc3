// SPDX-License-Identifier: MIT
// What a warp of moe_step.cu makes of its units: which part of the staged rows each one multiplies,
// the products, and the sums of groups over the warps that have pieces of them.
// Thread rule: device code.
#pragma once

#include <type_traits>

#include "cuda/kernels/moe/moe_step.cuh"
#include "cuda/kernels/products/fixed_rows.cuh"

namespace sharpi::cuda::step {

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
