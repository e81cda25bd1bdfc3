// SPDX-License-Identifier: MIT
// Attention of few rows on tensor cores, bound by the memory that holds the keys.
//   A block takes one KV head, its query vectors (rows times group, as rows of m16n8k16) and a span
//   of keys. Four warps form teams that take tiles of 16 keys in turn; a team is as many warps as
//   the head has slices of 128 dims, and each warp keeps its slice's queries and sums in registers.
//   Raw bytes of keys and values stream through a ring of tiles in shared memory that belongs to
//   the warp alone, so nothing but the products of a wide head ever waits for another warp.
//   With up to 8 vectors, rows 8 to 15 of the products hold what rounding queries and weights to
//   16 bits lost: bf16 rows are then used to f32 accuracy at no cost.
//   Before the grid dependency resolves, tiles of keys that older calls stored are fetched.
#include <algorithm>

#include "cuda/kernels/attention_teams.cuh"
#include "cuda/kernels/launch.h"

namespace sharpi::cuda {
namespace {

using namespace split;

constexpr int kTile = kSplitTile;
static_assert(kTile == kStreamTile);
constexpr int kMostStages = 4;
constexpr uint32_t kScaleBytes = kStreamScales;  // per key and q8_0 slice

/// How a warp's stage of the ring is laid out.
struct Stage {
  uint32_t k_pitch, v_pitch;     // bytes between keys, multiples of 128
  uint32_t v, k_scale, v_scale;  // offsets of the parts
  uint32_t bytes;
};
__host__ __device__ constexpr Stage make_stage(KvDtype k, KvDtype v, uint32_t slice) {
  Stage s = {};
  s.k_pitch = (slice * element_bytes(k) + 127) / 128 * 128;
  s.v_pitch = (slice * element_bytes(v) + 127) / 128 * 128;
  s.v = kTile * s.k_pitch;
  s.k_scale = s.v + kTile * s.v_pitch;
  s.v_scale = s.k_scale + (k == KvDtype::kQ8_0 ? kTile * kScaleBytes : 0);
  s.bytes = s.v_scale + (v == KvDtype::kQ8_0 ? kTile * kScaleBytes : 0);
  s.bytes = (s.bytes + 127) / 128 * 128;
  return s;
}

struct SplitArgs {
  AttentionArgs a;
  Stage stage;
  uint32_t n_stages;
  uint32_t k_granule, v_granule;  // bytes that every piece of a row is aligned to: 16, 4 or 2
};

// --- copies ---

/// kBytes of each of 16 rows; `row` is the lane's row address (lanes from `first_lane` on, null =
/// no such key, zeros), in pieces of 16 bytes.
template <uint32_t kBytes, bool kValue>
__device__ __forceinline__ void copy_rows(KvDtype type, uint64_t row, uint32_t pitch,
                                          const void* any, uint8_t* to) {
  constexpr uint32_t kPieces = kBytes / 16, kAll = kTile * kPieces;
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i0 = 0; i0 < kAll; i0 += 32) {
    const uint32_t i = i0 + lane, r = min(i / kPieces, uint32_t{kTile - 1}), c = i % kPieces * 16;
    const uint64_t from = __shfl_sync(0xFFFFFFFFu, row, static_cast<int>(r + (kValue ? kTile : 0)));
    if (kAll % 32 != 0 && i >= kAll) break;
    const uint32_t swizzle = kValue ? value_swizzle(type, r) : key_swizzle(type, r);
    cp_async_16_zfill(shared_address(to + r * pitch + (c ^ swizzle)),
                      from != 0 ? reinterpret_cast<const void*>(from + c) : any,
                      from != 0 ? 16 : 0);
  }
}

/// The same for rows that are not aligned to 16 bytes.
template <bool kValue>
__device__ __forceinline__ void copy_rows_slow(KvDtype type, uint64_t row, uint32_t bytes,
                                               uint32_t pitch, uint32_t granule, uint8_t* to) {
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t r = 0; r < kTile; ++r) {
    const uint64_t from = __shfl_sync(0xFFFFFFFFu, row, static_cast<int>(r + (kValue ? kTile : 0)));
    const uint32_t swizzle = kValue ? value_swizzle(type, r) : key_swizzle(type, r);
    for (uint32_t c = lane * granule; c < bytes; c += 32 * granule) {
      uint8_t* at = to + r * pitch + (c ^ swizzle);
      if (granule == 4 && from != 0) {
        cp_async_4(shared_address(at), reinterpret_cast<const void*>(from + c));
      } else {
        for (uint32_t b = 0; b < granule; b += 2) {
          *reinterpret_cast<uint16_t*>(at + b) =
              from != 0 ? *reinterpret_cast<const uint16_t*>(from + c + b) : uint16_t{0};
        }
      }
    }
  }
}

/// The scales of elements [e0, e0 + kSlice) of the lane's row; `row` starts at e0.
template <int kSlice>
__device__ __forceinline__ void copy_scales(uint64_t row, uint32_t e0, uint32_t n_elements,
                                            bool aligned, uint8_t* to) {
  const uint64_t at = row - e0 + n_elements + e0 / 32 * 2;
  if (row == 0) {
    *reinterpret_cast<uint2*>(to) = {0, 0};  // scale 0: an absent key is zero
  } else if (kSlice == 128 && aligned) {
    cp_async_8(shared_address(to), reinterpret_cast<const void*>(at));
  } else if (kSlice == 64 && aligned) {
    cp_async_4(shared_address(to), reinterpret_cast<const void*>(at));
  } else {
    const uint32_t n = (e0 + kSlice - 1) / 32 - e0 / 32 + 1;
    for (uint32_t i = 0; i < n; ++i) {
      reinterpret_cast<uint16_t*>(to)[i] = reinterpret_cast<const volatile uint16_t*>(at)[i];
    }
  }
}

/// Starts the copy of tile `tile` into a stage; one commit group, also when there is no such tile.
template <int kSlice>
__device__ __forceinline__ void fetch(const SplitArgs& s, const RowBlock& b, const KeyMap& map,
                                      uint32_t e0, uint64_t tile, bool exists, uint8_t* stage) {
  if (exists) {
    const KvLayer& l = s.a.p.kv;
    const uint32_t lane = threadIdx.x % 32, n = l.n_heads * l.head_dim;
    const bool value = lane >= kTile;
    const uint64_t key = tile * kTile + lane % kTile;
    uint64_t row = 0;
    if (key >= b.begin && key < b.end) {
      row = reinterpret_cast<uintptr_t>(key_row(l, map, key, value)) +
            e0 * element_bytes(value ? l.v_dtype : l.k_dtype);
    }
    const void* any = s.a.p.q;
    uint8_t *k = stage, *v = stage + s.stage.v;
    if (s.k_granule != 16) {
      copy_rows_slow<false>(l.k_dtype, row, kSlice, s.stage.k_pitch, s.k_granule, k);
    } else if (l.k_dtype == KvDtype::kBf16) {
      copy_rows<kSlice * 2, false>(KvDtype::kBf16, row, s.stage.k_pitch, any, k);
    } else if (l.k_dtype == KvDtype::kQ8_0) {
      copy_rows<kSlice, false>(KvDtype::kQ8_0, row, s.stage.k_pitch, any, k);
    } else {
      copy_rows<kSlice * 4, false>(KvDtype::kF32, row, s.stage.k_pitch, any, k);
    }
    if (s.v_granule != 16) {
      copy_rows_slow<true>(l.v_dtype, row, kSlice, s.stage.v_pitch, s.v_granule, v);
    } else if (l.v_dtype == KvDtype::kBf16) {
      copy_rows<kSlice * 2, true>(KvDtype::kBf16, row, s.stage.v_pitch, any, v);
    } else if (l.v_dtype == KvDtype::kQ8_0) {
      copy_rows<kSlice, true>(KvDtype::kQ8_0, row, s.stage.v_pitch, any, v);
    } else {
      copy_rows<kSlice * 4, true>(KvDtype::kF32, row, s.stage.v_pitch, any, v);
    }
    if ((value ? l.v_dtype : l.k_dtype) == KvDtype::kQ8_0) {
      copy_scales<kSlice>(
          row, e0, n, (value ? l.v_row_bytes : l.k_row_bytes) % 8 == 0,
          stage + (value ? s.stage.v_scale : s.stage.k_scale) + lane % kTile * kScaleBytes);
    }
  }
  cp_async_commit();
}

__device__ __forceinline__ void wait_for_oldest(uint32_t n_stages) {
  switch (n_stages) {
    case 2:
      return cp_async_wait<0>();
    case 3:
      return cp_async_wait<1>();
    default:
      return cp_async_wait<2>();
  }
}

// --- products ---

template <int kSlice>
__host__ __device__ constexpr uint32_t pitch_of(KvDtype type) {
  return (kSlice * element_bytes(type) + 127) / 128 * 128;
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
    const uint32_t row = 8 * tile + g, swizzle = key_swizzle(kType, row);
    uint32_t raw[Codec::kHalf];
#pragma unroll
    for (int c = 0; c < Codec::kChunks; ++c) {
      const uint32_t d = static_cast<uint32_t>(c) * Codec::kDepth + t * (Codec::kDepth / 4);
      if (S::kSlice % Codec::kDepth != 0 && d >= S::kSlice) {
#pragma unroll
        for (int i = 0; i < Codec::kWords; ++i) raw[c * Codec::kWords + i] = 0;
      } else {
        read_words<Codec::kWords>(k + row * kPitch + ((d * element_bytes(kType)) ^ swizzle), 16,
                                  raw + c * Codec::kWords);
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

/// o += weights * values; p as the A operand of 16 keys.
template <KvDtype kType, class S>
__device__ __forceinline__ void weigh_tile(const uint8_t* v, const uint8_t* scales, uint32_t e0,
                                           const uint32_t (&p)[4], SumRegs<S>& o) {
  using Codec = ValueCodec<kType, S::kSlice>;
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
            v + row * kPitch + ((d * element_bytes(kType)) ^ value_swizzle(kType, row)), 16,
            raw + i * Codec::kWords);
      }
    }
    Codec::multiply(raw, scales, e0, chunk, p, o[chunk]);
  }
}

/// The running softmax with weights as an operand.
template <class S, bool kPairs>
struct Running : RunningSoftmax<S, kPairs> {
  using Base = RunningSoftmax<S, kPairs>;
  using Base::high, Base::kHalves, Base::l, Base::low, Base::m;

  /// Masks the scores, turns them into weights as an A operand, rescales o when a maximum grew.
  __device__ __forceinline__ void fold(float (&s)[S::kScores], uint64_t tile, bool bf16,
                                       SumRegs<S>& o, uint32_t (&p)[4]) {
    const auto t0 = static_cast<int64_t>(tile * kTile + threadIdx.x % 4 * 2);
    float factor[kHalves];
    bool grew = false;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const auto from = static_cast<int32_t>(max(low[h] - t0, int64_t{-1}));
      const auto to = static_cast<int32_t>(max(min(high[h] - t0, int64_t{16}), int64_t{-1}));
      float top = m[h];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = i % 2 + i / 2 * 8;
        float& x = s[4 * h + i];
        x = key >= from && key <= to ? x : -INFINITY;
        top = fmaxf(top, x);
      }
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
      grew = grew || top > m[h];
      factor[h] = m[h] == -INFINITY ? 0.0f : exp2_approx(m[h] - top);
      m[h] = top;
    }
    Base::rescale(grew, factor, o);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = m[h] == -INFINITY ? 0.0f : exp2_approx(s[4 * h + i] - m[h]);
        l[h] += w[i];
      }
      p[h] = pack_16(bf16, w[0], w[1]);
      p[2 + h] = pack_16(bf16, w[2], w[3]);
      if (kPairs) {
        p[1] = pack_rest(bf16, w[0], w[1], p[0]);
        p[3] = pack_rest(bf16, w[2], w[3], p[2]);
      }
    }
  }
};

template <int kSlice, int kTeam, bool kPairs>
__global__ void __launch_bounds__(kThreads, 2)
    attention_ring_kernel(const __grid_constant__ SplitArgs s) {
  using S = Shape<kSlice, kTeam, kPairs>;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ uint32_t flag;
  __shared__ __align__(16) float exchange[kTeam > 1 ? S::kTeams * 2 * kTeam * 32 * S::kScores : 1];
  grid_dependents_launch();
  const AttentionArgs& a = s.a;
  const KvLayer& l = a.p.kv;
  RowBlock b;
  const uint32_t block = blockIdx.x / l.n_heads, kv = blockIdx.x % l.n_heads;
  if (!find_rows(a, block, &b)) return grid_dependency_wait();
  find_keys(a, &b);
  const uint32_t n_splits = split_count(a, b, kTile, kLeastSplitTiles);
  if (blockIdx.y >= n_splits) return;
  const TileRange range = split_tiles(b, kTile, blockIdx.y, n_splits);
  const KeyMap map = make_key_map(a, b.sequence);
  const uint32_t warp = threadIdx.x / 32, team = warp / kTeam, member = warp % kTeam;
  const uint32_t d0 = member * kSlice, e0 = kv * S::kDim + d0;
  uint8_t* ring = shared + warp * s.n_stages * s.stage.bytes;
  // Keys before this are older than the call: nothing that runs now writes them.
  const uint64_t old = b.first_key - b.row0;
  bool waited = false;
  for (uint32_t i = 0; i + 1 < s.n_stages; ++i) {
    const uint64_t tile = range.first + team + i * S::kTeams;
    if (!waited && (tile + 1) * kTile > old) {
      grid_dependency_wait();
      waited = true;
    }
    fetch<kSlice>(s, b, map, e0, tile, tile < range.last, ring + i * s.stage.bytes);
  }
  if (!waited) grid_dependency_wait();
  QuerySource vectors = {nullptr, a.p.q_stride, a.group, b.n * a.group, a.p.scale * kLog2E};
  vectors.base = a.p.q + (a.p.batch.table.sequences[b.sequence].first_row + b.row0) * vectors.row +
                 uint64_t{kv} * a.group * S::kDim;
  uint32_t q[S::kQueries];
  float worth[2] = {};
  if (l.k_dtype == KvDtype::kQ8_0) {
    load_query_bytes<S, kPairs>(vectors, d0, q, worth);
  } else {
    load_queries<S, kPairs>(vectors, d0, l.k_dtype == KvDtype::kBf16, q);
  }
  Running<S, kPairs> run;
  run.start(a, b);
  SumRegs<S> o = {};
  uint32_t turn = 0, at = 0;
  for (uint64_t tile = range.first + team; tile < range.last; tile += S::kTeams, ++turn) {
    wait_for_oldest(s.n_stages);
    __syncwarp();
    const uint64_t next = tile + (s.n_stages - 1) * S::kTeams;
    const uint32_t into = at == 0 ? s.n_stages - 1 : at - 1;
    fetch<kSlice>(s, b, map, e0, next, next < range.last, ring + into * s.stage.bytes);
    const uint8_t* stage = ring + at * s.stage.bytes;
    at = at + 1 == s.n_stages ? 0 : at + 1;
    float scores[S::kScores];
    const auto score = [&]<KvDtype kType>() {
      score_tile<kType, S, kPairs>(stage, stage + s.stage.k_scale, e0, q, worth, scores);
    };
    if (l.k_dtype == KvDtype::kBf16) {
      score.template operator()<KvDtype::kBf16>();
    } else if (l.k_dtype == KvDtype::kQ8_0) {
      score.template operator()<KvDtype::kQ8_0>();
    } else {
      score.template operator()<KvDtype::kF32>();
    }
    share_scores<S, kTeam>(scores, exchange, turn, team, member);
    uint32_t p[4];
    run.fold(scores, tile, l.v_dtype == KvDtype::kBf16, o, p);
    const auto weigh = [&]<KvDtype kType>() {
      weigh_tile<kType, S>(stage + s.stage.v, stage + s.stage.v_scale, e0, p, o);
    };
    if (l.v_dtype == KvDtype::kBf16) {
      weigh.template operator()<KvDtype::kBf16>();
    } else if (l.v_dtype == KvDtype::kQ8_0) {
      weigh.template operator()<KvDtype::kQ8_0>();
    } else {
      weigh.template operator()<KvDtype::kF32>();
    }
  }
  cp_async_wait<0>();
  __syncthreads();
  auto* parked = reinterpret_cast<float*>(shared);
  park<S, kPairs, kSlice, kTeam>(run, o, team, member, parked);
  __syncthreads();
  if (n_splits == 1) return merge_teams<S>(a, b, kv, parked, nullptr);
  const uint64_t stride = part_floats(a.block_rows * a.group, S::kDim);
  float* parts = a.parts + uint64_t{blockIdx.x} * a.max_splits * stride;
  merge_teams<S>(a, b, kv, parked, parts + blockIdx.y * stride);
  if (a.merge_later || !last_to_arrive(a.counters + blockIdx.x, n_splits, &flag)) return;
  const uint32_t n = b.n * a.group;
  merge_parts(a, b, kv, parts, stride, n, n_splits, 0, n * S::kDim, parked);
}

// --- host ---

uint32_t slice_of(uint32_t dim) {
  return std::min(dim, 128u);
}
uint32_t teams_of(uint32_t dim) {
  return kWarps / std::max(1u, dim / 128);
}

/// What the merge needs of the ring's memory.
uint32_t parked_bytes(uint32_t dim) {
  const uint32_t teams = teams_of(dim);
  const uint32_t merge = kMergeFloats * static_cast<uint32_t>(sizeof(float));
  return std::max<uint32_t>((2 * teams * 16 + teams * 16 * dim) * sizeof(float), merge);
}

struct Ring {
  uint32_t n_stages, bytes;
};
Ring make_ring(const MatmulConfig& config, const KvLayer& l) {
  const Stage stage = make_stage(l.k_dtype, l.v_dtype, slice_of(l.head_dim));
  const auto most = static_cast<uint32_t>(config.max_shared_bytes) - 10 * 1024;
  // Half of a multiprocessor's memory, so that two blocks fit; all of it if that is too little.
  const uint32_t half = most / 2 - 2 * 1024;
  const auto fit = [&](uint32_t bytes) {
    return std::min<uint32_t>(bytes / (stage.bytes * kWarps), kMostStages);
  };
  uint32_t n = fit(half);
  if (n < 3) n = std::max(n, std::min(fit(most), 3u));
  n = std::max(n, 2u);
  return {n, std::max(n * kWarps * stage.bytes, parked_bytes(l.head_dim))};
}

/// Every piece of every row starts at a multiple of this.
uint32_t granule_of(KvDtype type, uint32_t row_bytes, uint32_t dim) {
  if (type != KvDtype::kQ8_0) return 16;
  const uint32_t bits = row_bytes | slice_of(dim);
  return bits % 16 == 0 ? 16 : bits % 4 == 0 ? 4 : 2;
}

template <int kSlice, int kTeam, bool kPairs>
Status launch(const SplitArgs& s, uint32_t shared_bytes, bool pdl, cudaStream_t stream) {
  LaunchShape shape = {dim3(s.a.n_blocks * s.a.p.kv.n_heads, s.a.max_splits), dim3(kThreads),
                       shared_bytes, stream, pdl};
  return launch_kernel("attention_ring", shape, attention_ring_kernel<kSlice, kTeam, kPairs>, s);
}
template <int kSlice, int kTeam>
Status launch_either(const SplitArgs& s, uint32_t shared_bytes, bool pdl, cudaStream_t stream) {
  return s.a.block_rows * s.a.group <= 8
             ? launch<kSlice, kTeam, true>(s, shared_bytes, pdl, stream)
             : launch<kSlice, kTeam, false>(s, shared_bytes, pdl, stream);
}

Status launch_parts(const SplitArgs& s, uint32_t shared_bytes, bool pdl, cudaStream_t stream) {
  switch (s.a.p.kv.head_dim) {
    case 64:
      return launch_either<64, 1>(s, shared_bytes, pdl, stream);
    case 80:
      return launch_either<80, 1>(s, shared_bytes, pdl, stream);
    case 96:
      return launch_either<96, 1>(s, shared_bytes, pdl, stream);
    case 128:
      return launch_either<128, 1>(s, shared_bytes, pdl, stream);
    case 256:
      return launch_either<128, 2>(s, shared_bytes, pdl, stream);
    case 512:
      return launch_either<128, 4>(s, shared_bytes, pdl, stream);
    default:
      return Status::error(Code::kUnsupported, "kernel attention_ring: heads of %u elements",
                           s.a.p.kv.head_dim);
  }
}

template <int kSlice, int kTeam, bool kPairs>
Status prepare(int most) {
  auto* kernel = attention_ring_kernel<kSlice, kTeam, kPairs>;
  cudaFuncAttributes attributes = {};
  SHARPI_TRY(kernel_status(cudaFuncGetAttributes(&attributes, kernel), "attention_ring"));
  const int room = most - static_cast<int>(attributes.sharedSizeBytes);
  return kernel_status(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, room),
      "attention_ring");
}
template <int kSlice, int kTeam>
Status prepare_either(int most) {
  SHARPI_TRY((prepare<kSlice, kTeam, true>(most)));
  return prepare<kSlice, kTeam, false>(most);
}

}  // namespace

uint32_t attention_ring_blocks_per_sm(const MatmulConfig& config, const KvLayer& l) {
  return make_ring(config, l).bytes + 8 * 1024 <= static_cast<uint32_t>(config.max_shared_bytes) / 2
             ? 2
             : 1;
}

Status prepare_attention_ring(const MatmulConfig& config) {
  const int most = config.max_shared_bytes;
  SHARPI_TRY((prepare_either<64, 1>(most)));
  SHARPI_TRY((prepare_either<80, 1>(most)));
  SHARPI_TRY((prepare_either<96, 1>(most)));
  SHARPI_TRY((prepare_either<128, 1>(most)));
  SHARPI_TRY((prepare_either<128, 2>(most)));
  return prepare_either<128, 4>(most);
}

Status launch_attention_ring(const MatmulConfig& config, const AttentionArgs& a,
                             cudaStream_t stream) {
  const KvLayer& l = a.p.kv;
  const Ring ring = make_ring(config, l);
  SplitArgs s = {};
  s.a = a;
  // What the last block of a unit would read, in floats: beyond this it is spread over many.
  constexpr uint32_t kMergeAlone = 32 * 1024;
  const uint32_t columns = a.block_rows * a.group * l.head_dim;
  s.a.merge_later = a.max_splits * columns > kMergeAlone;
  s.stage = make_stage(l.k_dtype, l.v_dtype, slice_of(l.head_dim));
  s.n_stages = ring.n_stages;
  s.k_granule = granule_of(l.k_dtype, l.k_row_bytes, l.head_dim);
  s.v_granule = granule_of(l.v_dtype, l.v_row_bytes, l.head_dim);
  SHARPI_TRY(launch_parts(s, ring.bytes, config.pdl, stream));
  return s.a.merge_later ? launch_attention_merge(s.a, config.pdl, stream) : Status::ok();
}

}  // namespace sharpi::cuda
