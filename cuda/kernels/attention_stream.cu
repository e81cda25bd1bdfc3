// SPDX-License-Identifier: MIT
// Attention of few rows on tensor cores, bound by the memory that holds the keys.
//   A block takes one KV head, its query vectors (rows times group, as rows of m16n8k16) and a span
//   of keys. Four warps form teams that take tiles of 16 keys in turn; a team is as many warps as
//   the head has slices of 128 dims, and each warp keeps its slice's queries and sums in registers.
//   Keys and values go from global memory straight into the registers that are multiplied
//   (kv_stream.cuh): a warp's registers are refilled as soon as they are consumed, so that about a
//   tile of keys and one of values are always on their way. Only scales pass through shared memory.
//   With up to 8 vectors, rows 8 to 15 of the products hold what rounding queries and weights to
//   16 bits lost: bf16 rows are then used to f32 accuracy at no cost.
//   Before the grid dependency resolves, tiles of keys that older calls stored are fetched.
#include <algorithm>

#include "cuda/kernels/attention_source.cuh"
#include "cuda/kernels/attention_teams.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using namespace split;

struct SplitArgs {
  AttentionArgs a;
  bool k_aligned, v_aligned;  // q8_0: pieces of 8 bytes of a row are
};

// --- products ---

/// Scores of tile `tile`; keys of a later tile follow into the registers.
template <KvDtype kType, class S, bool kPairs, int kSub>
__device__ __forceinline__ void score_tile(const Source& src, Cursor* cursor, uint32_t tile,
                                           const uint8_t* scales, const uint32_t (&q)[S::kQueries],
                                           const float (&worth)[2],
                                           uint32_t (&raw)[kStreamRegisters],
                                           float (&s)[S::kScores]) {
  using Codec = KeyCodec<kType, S::kSlice>;
  using Fetch = KeyFetch<kType, S::kSlice>;
  const uint32_t t = threadIdx.x % 4;
  uint32_t* mine = raw + (Codec::kAhead == 2 ? kSub * kStreamRegisters / 2 : 0);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float c[4];
    Codec::template multiply<kPairs, S::kQueries>(
        mine + (Codec::kAhead == 0 ? 0 : half * Codec::kHalf) % kStreamRegisters, q,
        scales + (2 * t + 8u * static_cast<uint32_t>(half)) * kStreamScales, src.e0, c);
#pragma unroll
    for (int i = 0; i < S::kScores / 2; ++i) {
      s[i / 2 * 4 + 2 * half + i % 2] = Codec::kIntegers ? c[i] * worth[i / 2] : c[i];
    }
    if constexpr (Codec::kAhead == 0) {
      const uint32_t next = tile + static_cast<uint32_t>(half);
      if (next < src.n_tiles) {
        Fetch::template run<1>(src, cursor, next, 1 - static_cast<uint32_t>(half), mine);
      }
    }
  }
  if constexpr (Codec::kAhead != 0) {
    if (tile + Codec::kAhead < src.n_tiles) {
      Fetch::template run<2>(src, cursor, tile + Codec::kAhead, 0, mine);
    }
  }
}

/// o += weights * values of tile `tile`; values of a later tile follow into the registers.
template <KvDtype kType, class S, bool kPairs, int kSub>
__device__ __forceinline__ void weigh_tile(const Source& src, Cursor* cursor, uint32_t tile,
                                           const uint8_t* scales, const float (&w)[S::kScores],
                                           uint32_t (&raw)[kStreamRegisters], SumRegs<S>& o) {
  using Codec = ValueCodec<kType, S::kSlice>;
  using Fetch = ValueFetch<kType, S::kSlice>;
  uint32_t p[4];
  pack_weights<kType, S::kSlice, kPairs>(w, p);
  uint32_t* mine = raw + (Codec::kAhead == 2 ? kSub * kStreamRegisters / 2 : 0);
#pragma unroll
  for (int c = 0; c < Codec::kChunks; ++c) {
    Codec::template multiply<kPairs>(
        mine + (Codec::kAhead == 0 ? 0 : c * Codec::kChunk) % kStreamRegisters, scales, src.e0, c,
        p, o[c]);
    if constexpr (Codec::kAhead == 0) {
      const bool last = c + 1 == Codec::kChunks;
      if (tile + (last ? 1 : 0) < src.n_tiles) {
        Fetch::template run<1>(src, cursor, tile + (last ? 1 : 0), last ? 0 : c + 1, mine);
      }
    }
  }
  if constexpr (Codec::kAhead != 0) {
    if (tile + Codec::kAhead < src.n_tiles) {
      Fetch::template run<Codec::kChunks>(src, cursor, tile + Codec::kAhead, 0, mine);
    }
  }
}

/// The first tiles' keys and values.
template <KvDtype kType, class S>
__device__ __forceinline__ void prime_keys(const Source& src, Cursor* cursor,
                                           uint32_t (&raw)[kStreamRegisters]) {
  using Codec = KeyCodec<kType, S::kSlice>;
  using Fetch = KeyFetch<kType, S::kSlice>;
  cursor->start(src, false, threadIdx.x % 32 / 4, Fetch::offset(src));
  if (src.n_tiles > 0) Fetch::template run<Codec::kAhead == 0 ? 1 : 2>(src, cursor, 0, 0, raw);
  if constexpr (Codec::kAhead == 2) {
    if (src.n_tiles > 1) Fetch::template run<2>(src, cursor, 1, 0, raw + kStreamRegisters / 2);
  }
}
template <KvDtype kType, class S>
__device__ __forceinline__ void prime_values(const Source& src, Cursor* cursor,
                                             uint32_t (&raw)[kStreamRegisters]) {
  using Codec = ValueCodec<kType, S::kSlice>;
  using Fetch = ValueFetch<kType, S::kSlice>;
  constexpr int kChunks = Codec::kAhead == 0 ? 1 : Codec::kChunks;
  cursor->start(src, true, 2 * (threadIdx.x % 4), Fetch::offset(src));
  if (src.n_tiles > 0) Fetch::template run<kChunks>(src, cursor, 0, 0, raw);
  if constexpr (Codec::kAhead == 2) {
    if (src.n_tiles > 1) {
      Fetch::template run<kChunks>(src, cursor, 1, 0, raw + kStreamRegisters / 2);
    }
  }
}

template <KvDtype kKnown, int kSlice, int kTeam, bool kPairs>
__global__ void __launch_bounds__(kThreads, 2)
    attention_stream_kernel(const __grid_constant__ SplitArgs args) {
  using S = Shape<kSlice, kTeam, kPairs>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t flag;
  __shared__ __align__(16) float exchange[kTeam > 1 ? S::kTeams * 2 * kTeam * 32 * S::kScores : 1];
  __shared__ __align__(16) uint8_t scales[kWarps][kStreamStages * kStreamStage];
  grid_dependents_launch();
  const AttentionArgs& a = args.a;
  const KvLayer& l = a.p.kv;
  RowBlock b;
  const uint32_t block = blockIdx.x / l.n_heads, kv = blockIdx.x % l.n_heads;
  if (!find_rows(a, block, &b)) return grid_dependency_wait();
  find_keys(a, &b);
  const uint32_t n_splits = split_count(a, b, kTile, a.least_tiles);
  if (blockIdx.y >= n_splits) return;
  const TileRange range = split_tiles(b, kTile, blockIdx.y, n_splits);
  const KeyMap map = make_key_map(a, b.sequence);
  const uint32_t warp = threadIdx.x / 32, team = warp / kTeam, member = warp % kTeam;
  const uint32_t d0 = member * kSlice;
  Source src = {l, b, map, kv * S::kDim + d0};
  src.first = (range.first + team) * kTile;
  src.step = S::kTeams * kTile;
  // Rows of q8_0 are 136 bytes per 128 elements.
  src.k_aligned = kSlice == 128 || args.k_aligned;
  src.v_aligned = kSlice == 128 || args.v_aligned;
  const auto left = static_cast<uint32_t>(range.last - range.first);
  src.n_tiles = left > team ? (left - team + S::kTeams - 1) / S::kTeams : 0;
  src.count_whole();
  // Keys before this are older than the call: nothing that runs now writes them.
  const uint64_t old = b.first_key - b.row0;
  const bool fresh = src.key(1) + kTile > old;
  uint8_t* ring = scales[warp];
  uint32_t keys[kStreamRegisters], values[kStreamRegisters];
  Cursor key_at, value_at, scale_at;
  constexpr bool kPlain = kKnown == KvDtype::kF32 || kKnown == KvDtype::kBf16;
  const bool scaled = !kPlain && (l.k_dtype == KvDtype::kQ8_0 || l.v_dtype == KvDtype::kQ8_0);
  const auto prime = [&] {
    with_codec<kKnown>(l.k_dtype,
                       [&]<KvDtype kType>() { prime_keys<kType, S>(src, &key_at, keys); });
    if (scaled) {
      const uint32_t lane = threadIdx.x % 32;
      scale_at.start(src, lane >= kTile, lane % kTile, l.n_heads * l.head_dim + src.e0 / 32 * 2);
      fetch_scales<kSlice>(src, &scale_at, 0, ring);
      fetch_scales<kSlice>(src, &scale_at, 1, ring);
    }
    with_codec<kKnown>(l.v_dtype,
                       [&]<KvDtype kType>() { prime_values<kType, S>(src, &value_at, values); });
  };
  if (!fresh) prime();
  grid_dependency_wait();
  auto* parked = reinterpret_cast<float*>(shared);
  const QuerySource vectors = query_source<S>(a, b, kv);
  if (fresh) prime();
  uint32_t q[S::kQueries];
  float worth[2] = {};
  if (!kPlain && (kKnown == KvDtype::kQ8_0 || l.k_dtype == KvDtype::kQ8_0)) {
    load_query_bytes<S, kPairs>(vectors, d0, q, worth);
  } else {
    load_queries<S, kPairs>(vectors, d0, l.k_dtype == KvDtype::kBf16, q);
  }
  Running<S, kPairs> run;
  run.start(a, b);
  SumRegs<S> o = {};
  // Keys that every vector sees.
  const uint64_t all_from = l.window != 0 && b.end > b.low + l.window ? b.end - l.window : b.low;
  const auto step = [&]<int kSub>(uint32_t tile) {
    if (scaled) {
      fetch_scales<kSlice>(src, &scale_at, tile + 2, ring);
      cp_async_wait<2>();
      __syncwarp();
    }
    const uint8_t* stage = ring + tile % kStreamStages * kStreamStage;
    float s[S::kScores];
    with_codec<kKnown>(l.k_dtype, [&]<KvDtype kType>() {
      score_tile<kType, S, kPairs, kSub>(src, &key_at, tile, stage, q, worth, keys, s);
    });
    share_scores<S, kTeam>(s, exchange, tile, team, member);
    const uint64_t t0 = src.key(tile);
    run.fold(s, t0, t0 >= all_from && t0 + kTile <= b.first_key + 1, o);
    with_codec<kKnown>(l.v_dtype, [&]<KvDtype kType>() {
      weigh_tile<kType, S, kPairs, kSub>(src, &value_at, tile, stage + kTile * kStreamScales, s,
                                         values, o);
    });
  };
  for (uint32_t tile = 0; tile < src.n_tiles; tile += 2) {
    step.template operator()<0>(tile);
    if (tile + 1 < src.n_tiles) step.template operator()<1>(tile + 1);
  }
  cp_async_wait<0>();
  __syncthreads();
  const uint64_t stride = part_floats(a.block_rows * a.group, S::kDim);
  float* parts = a.parts + uint64_t{blockIdx.x} * a.max_splits * stride;
  finish<S, kPairs>(a, b, kv, run, o, team, member, parked,
                    n_splits == 1 ? nullptr : parts + blockIdx.y * stride);
  if (n_splits == 1 || a.merge_later || !last_to_arrive(a.counters + blockIdx.x, n_splits, &flag)) {
    return;
  }
  merge_parts(a, b, kv, parts, stride, b.n * a.group, n_splits, parked);
}

// --- host ---

template <KvDtype kKnown, int kSlice, int kTeam, bool kPairs>
Status launch(const SplitArgs& s, bool pdl, cudaStream_t stream) {
  using S = Shape<kSlice, kTeam, kPairs>;
  LaunchShape shape = {dim3(s.a.n_blocks * s.a.p.kv.n_heads, s.a.max_splits), dim3(kThreads), 0,
                       stream, pdl};
  shape.shared_bytes = parked_floats(S::kTeams, S::kVectors, S::kDim) * sizeof(float);
  return launch_kernel("attention_stream", shape,
                       attention_stream_kernel<kKnown, kSlice, kTeam, kPairs>, s);
}
template <int kSlice, int kTeam>
Status launch_either(const SplitArgs& s, bool pdl, cudaStream_t stream) {
  return with_known(s.a.p.kv, [&]<KvDtype kKnown>() {
    return s.a.block_rows * s.a.group <= 8 ? launch<kKnown, kSlice, kTeam, true>(s, pdl, stream)
                                           : launch<kKnown, kSlice, kTeam, false>(s, pdl, stream);
  });
}

template <KvDtype kKnown, int kSlice, int kTeam, bool kPairs>
Status prepare(int most) {
  auto* kernel = attention_stream_kernel<kKnown, kSlice, kTeam, kPairs>;
  cudaFuncAttributes attributes = {};
  SHARPI_TRY(kernel_status(cudaFuncGetAttributes(&attributes, kernel), "attention_stream"));
  const int room = most - static_cast<int>(attributes.sharedSizeBytes);
  return kernel_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
      "attention_stream");
}
template <KvDtype kKnown>
Status prepare_either(int most) {
  SHARPI_TRY((prepare<kKnown, 128, 4, true>(most)));
  return prepare<kKnown, 128, 4, false>(most);
}

}  // namespace

Status prepare_attention_stream(const MatmulConfig& config) {
  const int most = config.max_shared_bytes;
  SHARPI_TRY(prepare_either<KvDtype::kAuto>(most));
  SHARPI_TRY(prepare_either<KvDtype::kF32>(most));
  SHARPI_TRY(prepare_either<KvDtype::kBf16>(most));
  return prepare_either<KvDtype::kQ8_0>(most);
}

Status launch_attention_stream(const MatmulConfig& config, const AttentionArgs& a,
                               cudaStream_t stream) {
  const KvLayer& l = a.p.kv;
  if (l.head_dim != 512) {
    return Status::error(Code::kInternal, "kernel attention_stream: heads of %u elements",
                         l.head_dim);
  }
  SplitArgs s = {};
  s.a = a;
  // What the last block of a unit would read, in floats: beyond this it is spread over many.
  constexpr uint32_t kMergeAlone = 32 * 1024;
  const uint32_t columns = a.block_rows * a.group * l.head_dim;
  s.a.merge_later = a.max_splits * columns > kMergeAlone;
  s.k_aligned = l.k_row_bytes % 8 == 0;
  s.v_aligned = l.v_row_bytes % 8 == 0;
  SHARPI_TRY((launch_either<128, 4>(s, config.pdl, stream)));
  return s.a.merge_later ? launch_attention_merge(s.a, config.pdl, stream) : Status::ok();
}

}  // namespace sharpi::cuda
