// SPDX-License-Identifier: MIT
// Attention of few rows, bf16, q8_0 or q4 rows (or keys in q8_0 and values in q4) whose heads are
// whole slices of 128 dims: what attention_ring.cu does for all, in few instructions.
// attention_step.cu has the kernels for one row a sequence (a decode step), attention_step_rows.cu
// those for several (drafts that are verified).
//   A block takes one KV head, its query vectors (rows times group) and a span of keys; its eight
//   warps form teams that take tiles in turn, a warp for each slice of a head. Queries become
//   operands once a block, in shared memory.
// Thread rule: device code; the launchers are pure functions.
#pragma once

#include <algorithm>

#include "cuda/kernels/attention/attention_meet.cuh"
#include "cuda/kernels/attention/attention_step_products.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda::step {

constexpr float kLog2E = 1.4426950408889634f;

/// Where a vector's sums go: to the output, or to `part` as a partial result.
template <bool kSeveral>
struct Target {
  const AttentionArgs& a;
  uint64_t row;  // the block's first
  uint32_t kv, dim, vectors;
  float* part;

  __device__ __forceinline__ void store(uint32_t v, uint32_t d, float4 x, float top,
                                        float all) const {
    if (part == nullptr) {
      const uint32_t r = kSeveral ? v / a.group : 0;
      const uint32_t head = kv * a.group + v - r * a.group;
      return store_result(a.p, row + r, head, d, fma4(inverse_sum(a.p, head, top, all), x, {}));
    }
    *reinterpret_cast<float4*>(part + v * dim + d) = x;
    if (d == 0) {
      part[vectors * dim + v] = top;
      part[vectors * dim + vectors + v] = all;
    }
  }
};

/// Rotates back 128 neighbouring elements of a warp, four a lane, of values that are stored rotated
/// (kv/rotation.h). Partial results are rotated back too, so their merge has nothing more to do.
__device__ __forceinline__ float4 rotated_back(float4 sum) {
  float x[4] = {sum.x, sum.y, sum.z, sum.w};
  hadamard<true>(x, kMostRotated);
  rotation_signs<true>(x, kMostRotated);
  return {x[0], x[1], x[2], x[3]};
}

/// The teams' sums together to where they go; shared: F::kForm.parked floats.
template <class F, bool kPairs>
__device__ __forceinline__ void finish(Sums<F>& s, uint32_t team, uint32_t member, float* shared,
                                       const Target<F::kSeveral>& to) {
#pragma unroll
  for (int h = 0; h < F::kHalves; ++h) {
    s.l[h] += __shfl_xor_sync(0xFFFFFFFFu, s.l[h], 1);
    s.l[h] += __shfl_xor_sync(0xFFFFFFFFu, s.l[h], 2);
  }
  float *m = shared, *l = shared + F::kTeams * 16, *sums = shared + 2 * F::kTeams * 16;
  for_sums<F, kPairs>(s, [&](uint32_t v, uint32_t d, int h, float4 x) {
    if (d == 0) m[team * 16 + v] = s.m[h], l[team * 16 + v] = s.l[h];
    *reinterpret_cast<float4*>(sums + (team * F::kMost + v) * F::kParkedPitch + member * kSlice +
                               d) = x;
  });
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = threadIdx.x * 4; i < to.vectors * F::kDim; i += kThreads * 4) {
    const uint32_t v = i / F::kDim, d = i % F::kDim;
    float top = -INFINITY, all = 0.0f;
    float4 sum = {};
#pragma unroll
    for (uint32_t w = 0; w < F::kTeams; ++w) top = fmaxf(top, m[w * 16 + v]);
    const float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
    for (uint32_t w = 0; w < F::kTeams; ++w) {
      const float f = exp2_approx(m[w * 16 + v] - base);
      all = fmaf(f, l[w * 16 + v], all);
      sum =
          fma4(f, *reinterpret_cast<const float4*>(sums + (w * F::kMost + v) * F::kParkedPitch + d),
               sum);
    }
    if constexpr (is_rotated(F::T::V::kType)) sum = rotated_back(sum);
    to.store(v, d, sum, top, all);
  }
}

template <KvDtype kKey, KvDtype kValue, int kTeam, bool kPairs, uint32_t kSpace, bool kSeveral>
__global__ void __launch_bounds__(kThreads, 1)
    attention_step_kernel(const __grid_constant__ AttentionArgs a) {
  using F = Form<kKey, kValue, kTeam, kPairs, kSpace, kSeveral>;
  using T = typename F::T;
  constexpr uint32_t kKeys = T::kKeys;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint4 terms[kTeam][32 * F::kCount];
  __shared__ float unit[kTeam][16];
  __shared__ uint32_t flag;
  grid_dependents_launch();
  const KvLayer& l = a.p.kv;
  const uint32_t kv = blockIdx.x, split = blockIdx.z;
  RowBlock b;
  if (!find_rows(a, blockIdx.y, &b)) return grid_dependency_wait();
  find_keys(a, &b);
  const uint32_t n_splits = split_count(a, b, kKeys, a.least_tiles);
  if (split >= n_splits) return;
  const TileRange range = split_tiles(b, kKeys, split, n_splits);
  const KeyMap map = make_key_map(a, b.sequence);
  const uint32_t warp = threadIdx.x / 32, team = warp / kTeam, member = warp % kTeam;
  const uint32_t lane = threadIdx.x % 32, e0 = kv * F::kDim + member * kSlice;
  const uint32_t row_elements = l.n_heads * F::kDim;
  const uint64_t row = a.p.batch.table.sequences[b.sequence].first_row + (kSeveral ? b.row0 : 0);
  const uint32_t vectors = kSeveral ? b.n * a.group : a.group;
  Tiles tiles = {};
  const uint32_t k_first = value_bytes(kKey, e0), v_first = value_bytes(kValue, e0);
  tiles.base = map.group.base + v_first;
  tiles.block_stride = l.block_stride;
  tiles.k_row_bytes = l.k_row_bytes;
  tiles.v_row_bytes = kKey == kValue ? l.k_row_bytes : l.v_row_bytes;
  tiles.k_offset = static_cast<uint32_t>(l.k_offset) + (k_first - v_first);
  tiles.v_offset = static_cast<uint32_t>(l.v_offset);
  tiles.k_scales = value_bytes(kKey, row_elements) - k_first + e0 / 16;
  tiles.v_scales = value_bytes(kValue, row_elements) - v_first + e0 / 16;
  tiles.ring = l.window != 0 ? map.group.ring_slots : 0;
  tiles.begin = static_cast<uint32_t>(b.begin);
  tiles.newest = static_cast<uint32_t>(b.first_key) + (kSeveral ? b.n - 1 : 0);
  tiles.own = static_cast<uint32_t>(b.first_key) - (kSeveral ? b.row0 : 0);
  tiles.first_newest = static_cast<uint32_t>(b.first_key);
  tiles.window = static_cast<uint32_t>(l.window);
  tiles.low = static_cast<uint32_t>(b.low);
  tiles.group = a.group;
  if (l.window != 0) {
    tiles.new_k = chunk_row(l, map.chunk_block, 0, false) + k_first;
    tiles.new_v = chunk_row(l, map.chunk_block, 0, true) + v_first;
  }
  const LaneCopy copy = make_copy<T>(tiles);
  const LaneRead read = make_read<T, kPairs>();
  const uint32_t first = static_cast<uint32_t>(range.first) + team;
  const auto last = static_cast<uint32_t>(range.last);
  const uint32_t n_tiles = first < last ? (last - first - 1) / F::kTeams + 1 : 0;
  constexpr uint32_t ahead = F::kStages - 1;
  auto* exchange = reinterpret_cast<float*>(shared + F::kStages * F::kRing);
  uint8_t* ring = shared + warp * F::kStages * T::kBytesOf;
  const uint32_t ring_address = kept(shared_address(ring));
  uint32_t q[4 * F::kCount];
  float worth[2] = {};
  Sums<F> sums;
  sums.start();
  float4 x[kTeam];
  const auto load_queries = [&](uint32_t v0) {
    const float* from = a.p.q + row * a.p.q_stride + kv * a.group * F::kDim + member * kSlice;
#pragma unroll
    for (uint32_t j = 0; j < kTeam; ++j) {
      const uint32_t v = v0 + j * F::kTeams;
      if (v >= vectors) continue;
      uint64_t at = v * F::kDim;
      if constexpr (kSeveral) at = v / a.group * a.p.q_stride + v % a.group * F::kDim;
      x[j] = reinterpret_cast<const float4*>(from + at)[lane];
    }
  };
  bool ready = false;
  // Step i fetches tile i and multiplies tile i - ahead; all warps meet at the queries.
#pragma unroll 1
  for (uint32_t i = 0, into = 0, at = 0; i < max(n_tiles, 1u) + ahead; ++i) {
    const uint32_t coming = (first + i * F::kTeams) * kKeys;
    if (!ready && (i >= min(n_tiles, ahead) || coming + kKeys > tiles.own)) {
      grid_dependency_wait();
      ready = true;
      load_queries(team);  // they come while the newest keys are asked for
    }
    if (i == ahead) {
#pragma unroll 1
      for (uint32_t v0 = team; v0 < vectors;) {
#pragma unroll
        for (uint32_t j = 0; j < kTeam; ++j) {
          const uint32_t v = v0 + j * F::kTeams;
          if (v >= vectors) break;
          const float of =
              store_query<kKey, kPairs>(fma4(a.p.scale * kLog2E, x[j], {}), v, terms[member]);
          if (lane == 0) unit[member][v] = of;
        }
        v0 += F::kTeams * kTeam;
        load_queries(v0);
      }
      __syncthreads();
      if (n_tiles == 0) break;
      load_operands<F::kCount>(terms[member], q);
      worth[0] = unit[member][lane / 4];
      worth[1] = unit[member][lane / 4 + 8];
    }
    __syncwarp();
    if (i < n_tiles) fetch<T, kSeveral>(tiles, copy, coming, ring_address + into);
    cp_async_commit();
    into = into == ahead * T::kBytesOf ? 0 : into + T::kBytesOf;
    if constexpr (ahead != 0) {
      if (i < ahead) continue;
    }
    cp_async_wait<ahead>();
    __syncwarp();
    const uint8_t* stage = ring + at;
    at = at == ahead * T::kBytesOf ? 0 : at + T::kBytesOf;
    float scores[F::kScores];
    score_tile<F, kPairs>(stage, read, q, worth, scores);
    share_scores<F, kTeam>(scores, exchange, i - ahead, team, member);
    sums.fold(tiles, coming - ahead * F::kTeams * kKeys, scores);
    if constexpr (T::kCodes) {
#pragma unroll
      for (uint32_t i16 = 0; i16 < kKeys / 16; ++i16) {
        weigh_codes<F, kPairs>(stage, read, i16, scores, sums);
      }
    } else {
      weigh_wide<F, kPairs>(stage, read, scores, sums);
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  auto* parked = reinterpret_cast<float*>(shared);
  const uint64_t stride = part_floats(kSeveral ? a.block_rows * a.group : a.group, F::kDim);
  const uint32_t block = blockIdx.y * l.n_heads + kv;
  float* parts = a.parts + uint64_t{block} * a.max_splits * stride;
  finish<F, kPairs>(
      sums, team, member, parked,
      {a, row, kv, F::kDim, vectors, n_splits == 1 ? nullptr : parts + split * stride});
  if (n_splits == 1 || a.merge_later) return;
  meet<kThreads>(a, {row, kv, vectors, n_splits, parts, stride}, a.counters + block, &flag, shared);
}

// --- host ---

template <KvDtype kKey, KvDtype kValue, int kTeam, bool kPairs, uint32_t kSpace, bool kSeveral>
struct Launch {
  using F = Form<kKey, kValue, kTeam, kPairs, kSpace, kSeveral>;
  static constexpr auto* kKernel =
      attention_step_kernel<kKey, kValue, kTeam, kPairs, kSpace, kSeveral>;
  static constexpr uint32_t kShared = F::kForm.shared_bytes;
  static_assert(sizeof(MeetShare<kThreads>) <= kShared);

  static Status prepare() {
    return kernel_status(
        cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
        "attention_step");
  }
  static Status launch(const AttentionArgs& a, bool pdl, cudaStream_t stream) {
    const LaunchShape shape = {dim3(a.p.kv.n_heads, a.n_blocks, a.max_splits), dim3(kThreads),
                               kShared, stream, pdl};
    return launch_kernel("attention_step", shape, kKernel, a);
  }
};

/// f(Launch) of a layer: one for each pair of codecs, width of heads, number of vectors, and room.
template <bool kSeveral, KvDtype kKey, KvDtype kValue, int kTeam, bool kPairs, class Fn>
Status with_room(uint32_t room, const Fn& f) {
  return room == kStepRoom ? f(Launch<kKey, kValue, kTeam, kPairs, kStepRoom, kSeveral>{})
                           : f(Launch<kKey, kValue, kTeam, kPairs, kSmallStepRoom, kSeveral>{});
}
template <bool kSeveral, KvDtype kKey, KvDtype kValue, int kTeam, class Fn>
Status with_vectors(uint32_t room, bool pairs, const Fn& f) {
  return pairs ? with_room<kSeveral, kKey, kValue, kTeam, true>(room, f)
               : with_room<kSeveral, kKey, kValue, kTeam, false>(room, f);
}
template <bool kSeveral, KvDtype kKey, KvDtype kValue, class Fn>
Status with_team(uint32_t room, uint32_t dim, bool pairs, const Fn& f) {
  // A codec says in one place whether it has forms at all, so that a new one cannot be forgotten.
  static_assert(step_takes(kKey, kKey, kStepSlice) == DeviceCodec<kKey>::kStep &&
                step_takes(kValue, kValue, kStepSlice) == DeviceCodec<kValue>::kStep);
  if constexpr (step_takes(kKey, kValue, kStepSlice)) {
    if (dim == kStepSlice) return with_vectors<kSeveral, kKey, kValue, 1>(room, pairs, f);
    return with_vectors<kSeveral, kKey, kValue, 2>(room, pairs, f);
  } else {
    return Status::error(Code::kInternal, "kernel attention_step has no form for KV codecs %u, %u",
                         static_cast<uint32_t>(kKey), static_cast<uint32_t>(kValue));
  }
}
template <bool kSeveral, class Fn>
Status with_launch(uint32_t room, const StepCodecs& types, uint32_t dim, bool pairs, const Fn& f) {
  const auto none = [&] {
    return Status::error(Code::kInternal, "kernel attention_step does not know KV codecs %u, %u",
                         static_cast<uint32_t>(types.k), static_cast<uint32_t>(types.v));
  };
  return visit_kv_codec(
      types.k,
      [&]<KvDtype kKey>() {
        return visit_kv_codec(
            types.v,
            [&]<KvDtype kValue>() {
              return with_team<kSeveral, kKey, kValue>(room, dim, pairs, f);
            },
            none);
      },
      none);
}

/// The kernels' limits on shared memory.
template <bool kSeveral>
Status prepare_all(const KernelConfig& config) {
  const uint32_t room = step_room(config.device);
  if (room == 0) return Status::ok();
  for (const StepCodecs& types : kStepCodecs) {
    for (const uint32_t dim : {kStepSlice, 2 * kStepSlice}) {
      for (const bool pairs : {true, false}) {
        SHARPI_TRY(
            with_launch<kSeveral>(room, types, dim, pairs, [&](auto f) { return f.prepare(); }));
      }
    }
  }
  return Status::ok();
}

template <bool kSeveral>
Status launch_one(const KernelConfig& config, const AttentionArgs& a, cudaStream_t stream) {
  const uint32_t vectors = kSeveral ? a.block_rows * a.group : a.group;
  SHARPI_TRY(with_launch<kSeveral>(step_room(config.device), {a.p.kv.k_dtype, a.p.kv.v_dtype},
                                   a.p.kv.head_dim, vectors <= kStepPairs,
                                   [&](auto f) { return f.launch(a, config.pdl, stream); }));
  return a.merge_later ? launch_attention_merge(a, config.pdl, stream) : Status::ok();
}

}  // namespace sharpi::cuda::step
