// SPDX-License-Identifier: MIT
// Attention of a step, one row a sequence, bf16, q8_0 or q4 rows whose heads are whole slices of
// 128 dims: what attention_ring.cu does for all, in few instructions.
//   A block takes one KV head, its query vectors and a span of keys; its eight warps form teams
//   that take tiles in turn, a warp for each slice of a head. Queries become operands once a block,
//   in shared memory.
#include <algorithm>

#include "cuda/kernels/attention/attention_meet.cuh"
#include "cuda/kernels/attention/attention_step_products.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using namespace step;

constexpr float kLog2E = 1.4426950408889634f;

/// Where a vector's sums go: to the output, or to `part` as a partial result.
struct Target {
  const AttentionArgs& a;
  uint64_t row;
  uint32_t kv, dim;
  float* part;

  __device__ __forceinline__ void store(uint32_t v, uint32_t d, float4 x, float top,
                                        float all) const {
    if (part == nullptr) {
      return store_result(a.p, row, kv * a.group + v, d,
                          fma4(all > 0.0f ? __fdividef(1.0f, all) : 0.0f, x, {}));
    }
    *reinterpret_cast<float4*>(part + v * dim + d) = x;
    if (d == 0) {
      part[a.group * dim + v] = top;
      part[a.group * dim + a.group + v] = all;
    }
  }
};

/// Of values that are stored rotated: a warp's 128 neighbouring elements, four a lane, as they
/// were. Partial results are turned too; what is merged of them then needs nothing.
__device__ __forceinline__ float4 rotated_back(float4 sum) {
  float x[4] = {sum.x, sum.y, sum.z, sum.w};
  hadamard<true>(x, kMostRotated);
  rotation_signs<true>(x, kMostRotated);
  return {x[0], x[1], x[2], x[3]};
}

/// The teams' sums together to where they go; shared: F::kForm.parked floats.
template <KvDtype kType, class F, bool kPairs>
__device__ __forceinline__ void finish(Sums<F, kBytes<kType>>& s, uint32_t team, uint32_t member,
                                       float* shared, const Target& to) {
#pragma unroll
  for (int h = 0; h < F::kHalves; ++h) {
    s.l[h] += __shfl_xor_sync(0xFFFFFFFFu, s.l[h], 1);
    s.l[h] += __shfl_xor_sync(0xFFFFFFFFu, s.l[h], 2);
  }
  float *m = shared, *l = shared + F::kTeams * 16, *sums = shared + 2 * F::kTeams * 16;
  for_sums<kType, F, kPairs>(s, [&](uint32_t v, uint32_t d, int h, float4 x) {
    if (d == 0) m[team * 16 + v] = s.m[h], l[team * 16 + v] = s.l[h];
    *reinterpret_cast<float4*>(sums + (team * F::kMost + v) * F::kParkedPitch + member * kSlice +
                               d) = x;
  });
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = threadIdx.x * 4; i < to.a.group * F::kDim; i += kThreads * 4) {
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
    if constexpr (is_rotated(kType)) sum = rotated_back(sum);
    to.store(v, d, sum, top, all);
  }
}

template <KvDtype kType, int kTeam, bool kPairs, uint32_t kSpace>
__global__ void __launch_bounds__(kThreads, 1)
    attention_step_kernel(const __grid_constant__ AttentionArgs a) {
  using F = Form<kType, kTeam, kPairs, kSpace>;
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
  const uint64_t row = a.p.batch.table.sequences[b.sequence].first_row;
  Tiles tiles = {};
  tiles.base = map.group.base + value_bytes(kType, e0);
  tiles.block_stride = l.block_stride;
  tiles.row_bytes = l.k_row_bytes;
  tiles.k_offset = static_cast<uint32_t>(l.k_offset);
  tiles.v_offset = static_cast<uint32_t>(l.v_offset);
  tiles.scales = value_bytes(kType, row_elements) - value_bytes(kType, e0) + e0 / 16;
  tiles.ring = l.window != 0 ? map.group.ring_slots : 0;
  tiles.begin = static_cast<uint32_t>(b.begin);
  tiles.newest = static_cast<uint32_t>(b.first_key);
  if (l.window != 0) {
    tiles.new_k = chunk_row(l, map.chunk_block, 0, false) + value_bytes(kType, e0);
    tiles.new_v = chunk_row(l, map.chunk_block, 0, true) + value_bytes(kType, e0);
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
  Sums<F, kBytes<kType>> sums;
  sums.start();
  float4 x[kTeam];
  const auto load_queries = [&](uint32_t v0) {
    const float* from = a.p.q + row * a.p.q_stride + kv * a.group * F::kDim + member * kSlice;
#pragma unroll
    for (uint32_t j = 0; j < kTeam; ++j) {
      const uint32_t v = v0 + j * F::kTeams;
      if (v < a.group) x[j] = reinterpret_cast<const float4*>(from + v * F::kDim)[lane];
    }
  };
  bool ready = false;
  // Step i fetches tile i and multiplies tile i - ahead; all warps meet at the queries.
#pragma unroll 1
  for (uint32_t i = 0, into = 0, at = 0; i < max(n_tiles, 1u) + ahead; ++i) {
    const uint32_t coming = (first + i * F::kTeams) * kKeys;
    if (!ready && (i >= min(n_tiles, ahead) || coming + kKeys > tiles.newest)) {
      grid_dependency_wait();
      ready = true;
      load_queries(team);  // they come while the newest keys are asked for
    }
    if (i == ahead) {
#pragma unroll 1
      for (uint32_t v0 = team; v0 < a.group;) {
#pragma unroll
        for (uint32_t j = 0; j < kTeam; ++j) {
          const uint32_t v = v0 + j * F::kTeams;
          if (v >= a.group) break;
          const float of =
              store_query<kType, kPairs>(fma4(a.p.scale * kLog2E, x[j], {}), v, terms[member]);
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
    if (i < n_tiles) fetch<T>(tiles, copy, coming, ring_address + into);
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
    score_tile<kType, F, kPairs>(stage, read, q, worth, scores);
    share_scores<F, kTeam>(scores, exchange, i - ahead, team, member);
    sums.fold(tiles, coming - ahead * F::kTeams * kKeys, scores);
    if constexpr (kBytes<kType>) {
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
  const uint64_t stride = part_floats(a.group, F::kDim);
  const uint32_t block = blockIdx.y * l.n_heads + kv;
  float* parts = a.parts + uint64_t{block} * a.max_splits * stride;
  finish<kType, F, kPairs>(sums, team, member, parked,
                           {a, row, kv, F::kDim, n_splits == 1 ? nullptr : parts + split * stride});
  if (n_splits == 1 || a.merge_later) return;
  meet<kThreads>(a, {row, kv, a.group, n_splits, parts, stride}, a.counters + block, &flag, shared);
}

// --- host ---

template <KvDtype kType, int kTeam, bool kPairs, uint32_t kSpace>
struct Launch {
  using F = Form<kType, kTeam, kPairs, kSpace>;
  static constexpr auto* kKernel = attention_step_kernel<kType, kTeam, kPairs, kSpace>;
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

/// f(Launch) of a layer: one for each codec, width of heads, number of vectors, and room.
template <KvDtype kType, int kTeam, bool kPairs, class Fn>
Status with_room(uint32_t room, const Fn& f) {
  return room == kStepRoom ? f(Launch<kType, kTeam, kPairs, kStepRoom>{})
                           : f(Launch<kType, kTeam, kPairs, kSmallStepRoom>{});
}
template <KvDtype kType, int kTeam, class Fn>
Status with_vectors(uint32_t room, bool pairs, const Fn& f) {
  return pairs ? with_room<kType, kTeam, true>(room, f) : with_room<kType, kTeam, false>(room, f);
}
template <KvDtype kType, class Fn>
Status with_team(uint32_t room, uint32_t dim, bool pairs, const Fn& f) {
  if (dim == kStepSlice) return with_vectors<kType, 1>(room, pairs, f);
  return with_vectors<kType, 2>(room, pairs, f);
}
template <class Fn>
Status with_launch(uint32_t room, KvDtype type, uint32_t dim, bool pairs, const Fn& f) {
  const auto none = [&] {
    return Status::error(Code::kInternal, "kernel attention_step has no form for KV codec %u",
                         static_cast<uint32_t>(type));
  };
  return visit_kv_codec(
      type,
      [&]<KvDtype kType>() {
        if constexpr (DeviceCodec<kType>::kStep) return with_team<kType>(room, dim, pairs, f);
        return none();
      },
      none);
}

bool has_form(KvDtype type) {
  return visit_kv_codec(
      type,
      [&]<KvDtype kType>() {
        static_assert(!DeviceCodec<kType>::kStep || step_takes(kType, kStepSlice));
        return DeviceCodec<kType>::kStep;
      },
      [] { return false; });
}

}  // namespace

bool attention_step_fits(const KernelConfig& config, const KvLayer& l) {
  // Heads of 512 in two teams of four warps gave right results and took 58 instead of 66 us at 128K
  // (q8_0), but racecheck reports accesses there that a barrier of the block lies between.
  return l.k_dtype == l.v_dtype && step_takes(l.k_dtype, l.head_dim) && has_form(l.k_dtype) &&
         l.k_row_bytes % 16 == 0 && l.k_row_bytes == l.v_row_bytes && step_room(config.device) != 0;
}

Status prepare_attention_step(const KernelConfig& config) {
  const uint32_t room = step_room(config.device);
  if (room == 0) return Status::ok();
  for (const KvCodec& codec : kv_codecs()) {
    if (!has_form(codec.dtype)) continue;
    for (const uint32_t dim : {kStepSlice, 2 * kStepSlice}) {
      for (const bool pairs : {true, false}) {
        SHARPI_TRY(with_launch(room, codec.dtype, dim, pairs, [&](auto f) { return f.prepare(); }));
      }
    }
  }
  return Status::ok();
}

Status launch_attention_step(const KernelConfig& config, const AttentionArgs& a,
                             cudaStream_t stream) {
  SHARPI_TRY(with_launch(step_room(config.device), a.p.kv.k_dtype, a.p.kv.head_dim,
                         a.group <= kStepPairs,
                         [&](auto f) { return f.launch(a, config.pdl, stream); }));
  return a.merge_later ? launch_attention_merge(a, config.pdl, stream) : Status::ok();
}

}  // namespace sharpi::cuda
