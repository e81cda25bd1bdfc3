// SPDX-License-Identifier: MIT
// Attention of few rows (split-KV) on tensor cores, bound by the memory that holds the keys.
//   A block takes one KV head, its query vectors (rows times group, as rows of m16n8k16) and a span
//   of keys. Four warps form teams that take tiles of 16 keys round-robin; a team is as many warps
//   as the head has slices of 128 dims; each warp keeps its slice's queries and sums in registers.
//   Raw bytes of keys and values arrive by asynchronous copies in a multistage pipeline: a ring
//   buffer of tiles in shared memory that belongs to one warp, so warps wait for each other only
//   where the products of a head of several slices are added up. (This has nothing to do with ring
//   attention, which spreads a sequence over several devices.)
//   With up to 8 vectors, rows 8 to 15 of the products hold what rounding queries and weights to
//   16 bits lost: bf16 rows are then used to f32 accuracy at no cost.
//   Before the grid dependency resolves (programmatic dependent launch), tiles of keys that older
//   calls stored are fetched.
#include <algorithm>
#include <type_traits>

#include "cuda/kernels/attention/attention_meet.cuh"
#include "cuda/kernels/attention/attention_ring.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using namespace split;

struct SplitArgs {
  AttentionArgs a;
  Stage stage;
  uint32_t n_stages;
  uint32_t k_granule, v_granule;  // bytes that every piece of a row is aligned to: 16, 4 or 2
};

// --- products ---

template <int kSlice>
__host__ __device__ constexpr uint32_t pitch_of(KvDtype type) {
  return (value_bytes(type, kSlice) + 127) / 128 * 128;
}

/// n words at `at`; f32 rows find the second piece of 16 bytes by `flip`.
template <int kWords>
__device__ __forceinline__ void read_words(const uint8_t* at, uint32_t flip, uint32_t* r) {
  if constexpr (kWords == 1) {
    r[0] = *reinterpret_cast<const uint32_t*>(at);
  } else if constexpr (kWords == 2) {
    const auto v = *reinterpret_cast<const uint2*>(at);
    r[0] = v.x, r[1] = v.y;
  } else {
    const auto v = *reinterpret_cast<const uint4*>(at);
    r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
    if constexpr (kWords == 8) {
      read_words<4>(reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(at) ^ flip), 0,
                    r + 4);
    }
  }
}

/// Scores of a tile: s[4 * half + 2 * tile + i] of vector g + 8 * half, key 8 * tile + 2t + i.
template <KvDtype kType, class S, bool kPairs>
__device__ __forceinline__ void score_tile(const uint8_t* k, const uint8_t* scales, uint32_t e0,
                                           const uint32_t (&q)[S::kQueries],
                                           const float (&worth)[2], float (&s)[S::kScores]) {
  using Codec = KeyCodec<kType, S::kSlice>;
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  constexpr uint32_t kPitch = pitch_of<S::kSlice>(kType);
#pragma unroll
  for (uint32_t tile = 0; tile < 2; ++tile) {
    const uint32_t row = 8 * tile + g, swizzle = DeviceCodec<kType>::key_swizzle(row);
    uint32_t raw[Codec::kHalf];
#pragma unroll
    for (int c = 0; c < Codec::kChunks; ++c) {
      const uint32_t d = static_cast<uint32_t>(c) * Codec::kDepth + t * (Codec::kDepth / 4);
      if (S::kSlice % Codec::kDepth != 0 && d >= S::kSlice) {
#pragma unroll
        for (int i = 0; i < Codec::kWords; ++i) raw[c * Codec::kWords + i] = 0;
      } else {
        const uint8_t* at = k + row * kPitch + (value_bytes(kType, d) ^ swizzle);
        if constexpr (Codec::kBytes == 2) {
          raw[c] = *reinterpret_cast<const uint16_t*>(at);
        } else {
          read_words<Codec::kWords>(at, 16, raw + c * Codec::kWords);
        }
      }
    }
    float c[4];
    Codec::template multiply<kPairs, S::kQueries>(raw, q, scales + (8 * tile + 2 * t) * kScaleBytes,
                                                  e0, c);
#pragma unroll
    for (int i = 0; i < S::kScores / 2; ++i) {
      s[i / 2 * 4 + 2 * static_cast<int>(tile) + i % 2] =
          Codec::kIntegers ? c[i] * worth[i / 2] : c[i];
    }
  }
}

/// o += weights * values of 16 keys.
template <KvDtype kType, class S, bool kPairs>
__device__ __forceinline__ void weigh_tile(const uint8_t* v, const uint8_t* scales, uint32_t e0,
                                           const float (&w)[S::kScores], SumRegs<S>& o) {
  using Codec = ValueCodec<kType, S::kSlice>;
  uint32_t p[4];
  pack_weights<kType, S::kSlice, kPairs>(w, p);
  const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  constexpr uint32_t kPitch = pitch_of<S::kSlice>(kType);
#pragma unroll
  for (int chunk = 0; chunk < S::kValueChunks; ++chunk) {
    const uint32_t d = static_cast<uint32_t>(chunk) * 64 + 8 * g;
    uint32_t raw[Codec::kChunk] = {};
    if (S::kSlice % 64 == 0 || d < S::kSlice) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t row = 2 * t + i % 2 + 8 * (i / 2);
        read_words<Codec::kWords>(
            v + row * kPitch + (value_bytes(kType, d) ^ DeviceCodec<kType>::value_swizzle(row)), 16,
            raw + i * Codec::kWords);
      }
    }
    Codec::template multiply<kPairs>(raw, scales, e0, chunk, p, o[chunk]);
  }
}

/// Where several teams need the same queries as bytes, each converts a part of them; the kernel for
/// any codec has no shared memory for that.
template <KvDtype kKnown, class S>
constexpr bool kSpreads = uses_codes(kKnown) && S::kTeams > 1;
struct NoQueries {
  static constexpr int kTeams = kWarps, kQueries = 4;
};
/// Floats through which a team's warps exchange partial scores: two buffers, used alternately.
template <class S, int kTeam>
constexpr int kExchange = kTeam > 1 ? S::kTeams * 2 * kTeam * 32 * S::kScores : 1;

/// The slice's queries as operands of products with keys of the codec.
template <KvDtype kKnown, class S, bool kPairs, class Shared>
__device__ __forceinline__ void take_queries(const QuerySource& vectors, KvDtype type, uint32_t d0,
                                             uint32_t team, uint32_t member, Shared* at,
                                             uint32_t (&q)[S::kQueries], float (&worth)[2]) {
  if constexpr (kSpreads<kKnown, S>) {
    spread_query_bytes<S, kPairs>(vectors, d0, team, member, at, q, worth);
  } else {
    const KvDtype keys = kKnown != KvDtype::kAuto ? kKnown : type;
    if (uses_codes(keys)) {
      load_query_bytes<S, kPairs>(vectors, d0, q, worth);
    } else {
      load_queries<S, kPairs>(vectors, d0, uses_bf16(keys), q);
    }
  }
}

template <KvDtype kKnown, int kSlice, int kTeam, bool kPairs, bool kByHead>
__global__ void __launch_bounds__(kThreads, 2)
    attention_ring_kernel(const __grid_constant__ SplitArgs s) {
  using S = Shape<kSlice, kTeam, kPairs>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t flag;
  __shared__ __align__(16) float exchange[kExchange<S, kTeam>];
  __shared__ SharedQueries<std::conditional_t<kSpreads<kKnown, S>, S, NoQueries>> queries;
  grid_dependents_launch();
  const AttentionArgs& a = s.a;
  const KvLayer& l = a.p.kv;
  RowBlock b;
  const uint32_t block = blockIdx.x / l.n_heads, kv = blockIdx.x % l.n_heads;
  if (!find_rows(a, block, &b)) return grid_dependency_wait();
  find_keys(a, &b);
  count_keys<kByHead>(a, kv, &b);
  const uint32_t n_splits = split_count(a, b, kTile, a.least_tiles);
  if (blockIdx.y >= n_splits) return;
  const TileRange range = split_tiles(b, kTile, blockIdx.y, n_splits);
  const auto map = find_head<kByHead>(a, b.sequence, kv);
  const uint32_t warp = threadIdx.x / 32, team = warp / kTeam, member = warp % kTeam;
  const uint32_t d0 = member * kSlice, e0 = first_element(map, kv, S::kDim) + d0;
  uint8_t* ring = shared + warp * s.n_stages * s.stage.bytes;
  const RingSource<std::remove_const_t<decltype(map)>> src = {
      l, b, map, s.stage, a.p.batch.table.sequences, s.k_granule, s.v_granule, e0};
  const uint64_t first = range.first + team;
  const uint32_t n_tiles =
      first < range.last ? static_cast<uint32_t>(range.last - first - 1) / S::kTeams + 1 : 0;
  // Keys before this are older than the call: nothing that runs now writes them.
  const uint64_t old = b.first_key - b.row0;
  // Keys that every vector sees.
  const uint64_t all_from = l.window != 0 && b.end > b.low + l.window ? b.end - l.window : b.low;
  const uint32_t ahead = s.n_stages - 1;
  uint32_t q[S::kQueries];
  float worth[2] = {};
  Running<S, kPairs> run;
  run.start(a, b);
  SumRegs<S> o = {};
  bool ready = false;
  // Step i fetches tile i and multiplies tile i - ahead; all warps meet at the queries.
#pragma unroll 1
  for (uint32_t i = 0, into = 0, at = 0; i < max(n_tiles, 1u) + ahead; ++i) {
    const uint64_t coming = first + uint64_t{i} * S::kTeams;
    if (!ready && (i >= min(n_tiles, ahead) || (coming + 1) * kTile > old)) {
      grid_dependency_wait();
      ready = true;
    }
    __syncwarp();
    fetch<kKnown, kSlice>(src, coming, i < n_tiles, ring + into * s.stage.bytes);
    into = into == ahead ? 0 : into + 1;
    if (i < ahead) continue;
    if (i == ahead) {
      take_queries<kKnown, S, kPairs>(query_source<S>(a, b, kv), l.k_dtype, d0, team, member,
                                      &queries, q, worth);
      if (n_tiles == 0) break;
    }
    wait_for_oldest(s.n_stages);
    __syncwarp();
    const uint8_t* stage = ring + at * s.stage.bytes;
    at = at == ahead ? 0 : at + 1;
    float scores[S::kScores];
    with_codec<kKnown>(l.k_dtype, [&]<KvDtype kType>() {
      score_tile<kType, S, kPairs>(stage, stage + s.stage.k_scale, e0, q, worth, scores);
    });
    share_scores<S, kTeam>(scores, exchange, i - ahead, team, member);
    const uint64_t t0 = (coming - uint64_t{ahead} * S::kTeams) * kTile;
    run.fold(scores, t0, t0 >= all_from && t0 + kTile <= b.first_key + 1, o);
    with_codec<kKnown>(l.v_dtype, [&]<KvDtype kType>() {
      weigh_tile<kType, S, kPairs>(stage + s.stage.v, stage + s.stage.v_scale, e0, scores, o);
    });
  }
  cp_async_wait<0>();
  __syncthreads();
  auto* parked = reinterpret_cast<float*>(shared);
  const uint64_t stride = part_floats(a.block_rows * a.group, S::kDim);
  float* parts = a.parts + uint64_t{blockIdx.x} * a.max_splits * stride;
  finish<S, kPairs>(a, b, kv, run, o, team, member, parked,
                    n_splits == 1 ? nullptr : parts + blockIdx.y * stride);
  if (n_splits == 1 || a.merge_later) return;
  const uint64_t row = a.p.batch.table.sequences[b.sequence].first_row + b.row0;
  meet<kThreads>(a, {row, kv, b.n * a.group, n_splits, parts, stride}, a.counters + blockIdx.x,
                 &flag, shared);
}

// --- host ---

RingForm form_of(const KernelConfig& config, const KvLayer& l) {
  return ring_form(config.device, l.k_dtype, l.v_dtype, l.head_dim);
}

/// Every piece of every row starts at a multiple of this. `row`: row_bits().
uint32_t granule_of(KvDtype type, uint32_t row, uint32_t dim) {
  if (!has_scales(type)) return 16;
  const uint32_t bits = row | value_bytes(type, slice_of(dim));
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 2;
}

template <KvDtype kKnown, int kSlice, int kTeam, bool kPairs, bool kByHead>
Status launch(const SplitArgs& s, uint32_t shared_bytes, bool pdl, cudaStream_t stream) {
  using S = Shape<kSlice, kTeam, kPairs>;
  using Asked = SharedQueries<std::conditional_t<kSpreads<kKnown, S>, S, NoQueries>>;
  static_assert(16 + kExchange<S, kTeam> * sizeof(float) + sizeof(Asked) <=
                ring_static_bytes(kKnown, kKnown, kSlice * kTeam));
  LaunchShape shape = {dim3(s.a.n_blocks * s.a.p.kv.n_heads, s.a.max_splits), dim3(kThreads),
                       shared_bytes, stream, pdl};
  return launch_kernel("attention_ring", shape,
                       attention_ring_kernel<kKnown, kSlice, kTeam, kPairs, kByHead>, s);
}

template <KvDtype kKnown, int kSlice, int kTeam, bool kByHead = false>
Status launch_either(const SplitArgs& s, uint32_t shared_bytes, bool pdl, cudaStream_t stream) {
  return s.a.block_rows * s.a.group <= 8
             ? launch<kKnown, kSlice, kTeam, true, kByHead>(s, shared_bytes, pdl, stream)
             : launch<kKnown, kSlice, kTeam, false, kByHead>(s, shared_bytes, pdl, stream);
}
/// Rows that may be in blocks of one head: one kernel for all codecs.
Status launch_by_head(const SplitArgs& s, uint32_t shared_bytes, bool pdl, cudaStream_t stream) {
  constexpr KvDtype kAny = KvDtype::kAuto;
  switch (s.a.p.kv.head_dim) {
    case 64:
      return launch_either<kAny, 64, 1, true>(s, shared_bytes, pdl, stream);
    case 80:
      return launch_either<kAny, 80, 1, true>(s, shared_bytes, pdl, stream);
    case 96:
      return launch_either<kAny, 96, 1, true>(s, shared_bytes, pdl, stream);
    case 128:
      return launch_either<kAny, 128, 1, true>(s, shared_bytes, pdl, stream);
    case 256:
      return launch_either<kAny, 128, 2, true>(s, shared_bytes, pdl, stream);
    default:
      return launch_either<kAny, 128, 4, true>(s, shared_bytes, pdl, stream);
  }
}
template <int kTeam>
Status launch_codec(const SplitArgs& s, uint32_t shared_bytes, bool pdl, cudaStream_t stream) {
  return with_known(s.a.p.kv, [&]<KvDtype kKnown>() {
    return launch_either<kKnown, 128, kTeam>(s, shared_bytes, pdl, stream);
  });
}

Status launch_parts(const SplitArgs& s, uint32_t shared_bytes, bool pdl, cudaStream_t stream) {
  switch (s.a.p.kv.head_dim) {
    case 64:
      return launch_either<KvDtype::kAuto, 64, 1>(s, shared_bytes, pdl, stream);
    case 80:
      return launch_either<KvDtype::kAuto, 80, 1>(s, shared_bytes, pdl, stream);
    case 96:
      return launch_either<KvDtype::kAuto, 96, 1>(s, shared_bytes, pdl, stream);
    case 128:
      return launch_codec<1>(s, shared_bytes, pdl, stream);
    case 256:
      return launch_codec<2>(s, shared_bytes, pdl, stream);
    case 512:
      return launch_codec<4>(s, shared_bytes, pdl, stream);
    default:
      return Status::error(Code::kUnsupported,
                           "kernel attention_ring cannot take heads of %u elements",
                           s.a.p.kv.head_dim);
  }
}

template <KvDtype kKnown, int kSlice, int kTeam, bool kPairs, bool kByHead>
Status prepare(int most) {
  auto* kernel = attention_ring_kernel<kKnown, kSlice, kTeam, kPairs, kByHead>;
  cudaFuncAttributes attributes = {};
  SHARPI_TRY(kernel_status(cudaFuncGetAttributes(&attributes, kernel), "attention_ring"));
  const int room = most - static_cast<int>(attributes.sharedSizeBytes);
  return kernel_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
      "attention_ring");
}
template <KvDtype kKnown, int kSlice, int kTeam>
Status prepare_either(int most) {
  if constexpr (kKnown == KvDtype::kAuto) {
    SHARPI_TRY((prepare<kKnown, kSlice, kTeam, true, true>(most)));
    SHARPI_TRY((prepare<kKnown, kSlice, kTeam, false, true>(most)));
  }
  SHARPI_TRY((prepare<kKnown, kSlice, kTeam, true, false>(most)));
  return prepare<kKnown, kSlice, kTeam, false, false>(most);
}
template <int kTeam>
Status prepare_codecs(int most) {
  SHARPI_TRY((prepare_either<KvDtype::kAuto, 128, kTeam>(most)));
  for (const KvCodec& codec : kv_codecs()) {
    SHARPI_TRY(visit_kv_codec(
        codec.dtype, [&]<KvDtype kKnown>() { return prepare_either<kKnown, 128, kTeam>(most); },
        [] { return Status::ok(); }));
  }
  return Status::ok();
}

}  // namespace

uint32_t attention_ring_blocks_per_sm(const KernelConfig& config, const KvLayer& l) {
  return form_of(config, l).blocks_per_sm;
}

Status prepare_attention_ring(const KernelConfig& config) {
  const int most = config.device.shared_per_block;
  SHARPI_TRY((prepare_either<KvDtype::kAuto, 64, 1>(most)));
  SHARPI_TRY((prepare_either<KvDtype::kAuto, 80, 1>(most)));
  SHARPI_TRY((prepare_either<KvDtype::kAuto, 96, 1>(most)));
  SHARPI_TRY((prepare_codecs<1>(most)));
  SHARPI_TRY((prepare_codecs<2>(most)));
  return prepare_codecs<4>(most);
}

Status launch_attention_ring(const KernelConfig& config, const AttentionArgs& a,
                             cudaStream_t stream) {
  const KvLayer& l = a.p.kv;
  const RingForm ring = form_of(config, l);
  if (ring.n_stages == 0) {
    return Status::error(
        Code::kUnsupported,
        "kernel attention_ring has no room in shared memory for rows of heads of %u elements",
        l.head_dim);
  }
  SplitArgs s = {};
  s.a = a;
  s.stage = make_stage(l.k_dtype, l.v_dtype, slice_of(l.head_dim));
  s.n_stages = ring.n_stages;
  s.k_granule = granule_of(l.k_dtype, row_bits(a.p, l.k_row_bytes), l.head_dim);
  s.v_granule = granule_of(l.v_dtype, row_bits(a.p, l.v_row_bytes), l.head_dim);
  if (a.p.by_head) return launch_by_head(s, ring.shared_bytes, config.pdl, stream);
  SHARPI_TRY(launch_parts(s, ring.shared_bytes, config.pdl, stream));
  return s.a.merge_later ? launch_attention_merge(s.a, config.pdl, stream) : Status::ok();
}

}  // namespace sharpi::cuda
