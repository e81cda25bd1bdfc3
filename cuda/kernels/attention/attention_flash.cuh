// SPDX-License-Identifier: MIT
// What the attention kernels of many rows share: a block of threads takes S::kVectors query vectors
// of one KV head, stages raw bytes of keys and values, turns them into tiles of f16, and keeps
// running softmaxes. A shape S says how many threads, vectors, keys of a tile and dims there are,
// and where an element of a tile lies (S::place).
// Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/attention/attention_flash_plan.h"
#include "cuda/kernels/kv/kv_fragments.cuh"

namespace sharpi::cuda::flash {

constexpr float kLog2E = 1.4426950408889634f;

template <class S>
constexpr FlashShape flash_shape_of() {
  return {S::kDim, S::kKeys, S::kKeptQueries, S::kTileBytes, S::kScalePitch, S::kInTurn};
}
template <class S>
constexpr Plan make_plan(KvDtype k, KvDtype v) {
  return make_flash_plan(flash_shape_of<S>(), k, v);
}

struct Args {
  AttentionArgs a;
  Plan plan;
  uint32_t k_granule, v_granule;
};

/// Queries times scale and log2(e) as f16; unused vectors are zero.
template <class S>
__device__ __forceinline__ void load_queries(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                             uint8_t* to) {
  constexpr uint32_t kDim = S::kDim;
  const AttentionParams& p = a.p;
  const float scale = p.scale * kLog2E;
  const uint32_t n = b.n * a.group;
  const uint32_t first_row = p.batch.table.sequences[b.sequence].first_row + b.row0;
  for (uint32_t i = threadIdx.x; i < S::kVectors * kDim / 4; i += S::kThreads) {
    const uint32_t v = i / (kDim / 4), d = i % (kDim / 4) * 4;
    float4 x = {};
    if (v < n) {
      const uint64_t row = first_row + v / a.group;
      x = *reinterpret_cast<const float4*>(p.q + row * p.q_stride +
                                           (kv * a.group + v % a.group) * kDim + d);
    }
    *reinterpret_cast<uint2*>(to + S::place_query(v, d)) = {pack_f16(x.x * scale, x.y * scale),
                                                            pack_f16(x.z * scale, x.w * scale)};
  }
}

/// Where the rows of a tile start (the head's part); 0 = no such key.
template <class S, class Map>
__device__ __forceinline__ void find_tile_rows(const Args& f, const RowBlock& b, const Map& map,
                                               uint32_t e0, uint64_t t0, uint64_t* rows) {
  const KvLayer& l = f.a.p.kv;
  for (uint32_t i = threadIdx.x; i < 2 * S::kKeys; i += S::kThreads) {
    const bool value = i >= S::kKeys;
    const uint64_t key = t0 + i % S::kKeys;
    uint64_t row = 0;
    if (key >= b.begin && key < b.end) {
      row = reinterpret_cast<uintptr_t>(row_at(l, map, key, value)) +
            value_bytes(value ? l.v_dtype : l.k_dtype, e0);
    }
    rows[i] = row;
  }
}

template <KvDtype kType, class S>
__device__ __forceinline__ void fetch_part(const uint64_t* rows, uint32_t granule, uint32_t e0,
                                           uint32_t n_elements, const void* any, uint8_t* raw,
                                           uint8_t* scales) {
  constexpr uint32_t kDim = S::kDim;
  constexpr uint32_t bytes = value_bytes(kType, kDim);
  if (granule == 16) {
    constexpr uint32_t pieces = bytes / 16;
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < S::kKeys * pieces; i += S::kThreads) {
      const uint32_t r = i / pieces, c = i % pieces * 16;
      const uint64_t row = rows[r];
      cp_async_16_zfill(shared_address(raw + r * bytes + c),
                        row != 0 ? reinterpret_cast<const void*>(row + c) : any, row != 0 ? 16 : 0);
    }
  } else {
    for (uint32_t i = threadIdx.x; i < S::kKeys * bytes / 2; i += S::kThreads) {
      const uint32_t r = i / (bytes / 2), c = i % (bytes / 2) * 2;
      const uint64_t row = rows[r];
      *reinterpret_cast<uint16_t*>(raw + r * bytes + c) =
          row != 0 ? *reinterpret_cast<const uint16_t*>(row + c) : uint16_t{0};
    }
  }
  if constexpr (!has_scales(kType)) return;
  const uint32_t first = e0 / 32, n = (e0 + kDim - 1) / 32 - first + 1;
  for (uint32_t r = threadIdx.x; r < S::kKeys; r += S::kThreads) {
    uint8_t* to = scales + r * S::kScalePitch;
    const uint64_t at =
        rows[r] - value_bytes(kType, e0) + value_bytes(kType, n_elements) + first * 2;
    const auto skip = static_cast<uint32_t>(at & 3u);
    if (rows[r] == 0) {
      for (uint32_t w = 0; w < S::kScalePitch / 4; ++w) reinterpret_cast<uint32_t*>(to)[w] = 0;
      continue;
    }
    for (uint32_t w = 0; w < (skip + 2 * n + 3) / 4; ++w) {
      cp_async_4(shared_address(to + 4 * w), reinterpret_cast<const void*>(at - skip + 4 * w));
    }
    *reinterpret_cast<uint32_t*>(to + S::kScalePitch - 4) = skip;
  }
}

template <class S>
__device__ __forceinline__ void fetch_part_of(KvDtype type, const uint64_t* rows, uint32_t granule,
                                              uint32_t e0, uint32_t n, const void* any,
                                              uint8_t* raw, uint8_t* scales) {
  with_kv_codec<KvDtype::kF32>(
      type, [&]<KvDtype kType>() { fetch_part<kType, S>(rows, granule, e0, n, any, raw, scales); });
}

/// Starts the copies of the keys or the values of the tile whose row addresses were found, in rows
/// of n elements.
template <class S>
__device__ __forceinline__ void fetch_half(const Args& f, uint32_t e0, uint32_t n, bool values,
                                           uint8_t* shared) {
  const KvLayer& l = f.a.p.kv;
  const auto* rows = reinterpret_cast<const uint64_t*>(shared + f.plan.rows);
  fetch_part_of<S>(values ? l.v_dtype : l.k_dtype, rows + (values ? S::kKeys : 0),
                   values ? f.v_granule : f.k_granule, e0, n, f.a.p.q, shared + f.plan.k_raw,
                   shared + f.plan.k_scale);
  cp_async_commit();
}
/// Starts the copies of the tile whose row addresses were found.
template <class S>
__device__ __forceinline__ void fetch(const Args& f, uint32_t e0, uint32_t n, uint8_t* shared) {
  const KvLayer& l = f.a.p.kv;
  const auto* rows = reinterpret_cast<const uint64_t*>(shared + f.plan.rows);
  fetch_part_of<S>(l.k_dtype, rows, f.k_granule, e0, n, f.a.p.q, shared + f.plan.k_raw,
                   shared + f.plan.k_scale);
  fetch_part_of<S>(l.v_dtype, rows + S::kKeys, f.v_granule, e0, n, f.a.p.q, shared + f.plan.v_raw,
                   shared + f.plan.v_scale);
  cp_async_commit();
}

/// Stored bytes to a tile of f16: four pieces of eight elements in flight per thread.
template <KvDtype kType, class S>
__device__ __forceinline__ void convert_part(uint32_t e0, const uint8_t* raw, const uint8_t* scales,
                                             uint8_t* tile) {
  constexpr uint32_t kDim = S::kDim;
  constexpr uint32_t kAll = S::kKeys * kDim / 8;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < kAll; i += S::kThreads) {
    const uint32_t r = i / (kDim / 8), d = i % (kDim / 8) * 8;
    const uint8_t* scale = nullptr;
    if (has_scales(kType)) {
      scale = scales + r * S::kScalePitch;
      scale += *reinterpret_cast<const uint32_t*>(scale + S::kScalePitch - 4) +
               (kDim % 32 == 0 ? d / 32 : (e0 + d) / 32 - e0 / 32) * 2;
    }
    uint32_t v[4];
    fragment_f16<kType>(raw + value_bytes(kType, r * kDim + d), 16, scale, v);
    *reinterpret_cast<uint4*>(tile + S::place(r, d)) = {v[0], v[1], v[2], v[3]};
  }
}
template <class S>
__device__ __forceinline__ void convert(KvDtype type, uint32_t e0, const uint8_t* raw,
                                        const uint8_t* scales, uint8_t* tile) {
  with_kv_codec<KvDtype::kF32>(
      type, [&]<KvDtype kType>() { convert_part<kType, S>(e0, raw, scales, tile); });
}

template <class S>
using Scores = float[S::kKeys / 8][4];
template <class S>
using Sums = float[S::kOutDim / 8][4];
template <class S>
using Queries = uint32_t[S::kQueriesInRegisters ? S::kDim / 16 : 1][4];

/// Running softmax of a thread's two vectors.
struct Running {
  float m[2], l[2];
  int64_t low[2], high[2];  // keys that the vector sees: [low, high]
};

__device__ __forceinline__ Running start(const AttentionArgs& a, const RowBlock& b,
                                         uint32_t vector) {
  Running r;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t row = (vector + 8u * static_cast<uint32_t>(h)) / a.group;
    r.m[h] = -INFINITY;
    r.l[h] = 0.0f;
    r.high[h] = row < b.n ? static_cast<int64_t>(b.first_key + row) : -1;
    r.low[h] = static_cast<int64_t>(b.low);
    if (a.p.kv.window != 0) r.low[h] = max(r.low[h], r.high[h] + 1 - int64_t{a.p.kv.window});
  }
  return r;
}

/// Scores of the tile from t0 become weights; maxima grow, sums shrink by `factor` before they
/// grow. kMasked: not every row sees all of its keys.
template <class S, bool kMasked>
__device__ __forceinline__ void fold_tile(Running* r, uint64_t t0, Scores<S>& s,
                                          float (&factor)[2]) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float top = r->m[h];
    const int64_t at = static_cast<int64_t>(t0) + threadIdx.x % 4 * 2;
    const auto from = static_cast<int32_t>(max(r->low[h] - at, int64_t{-1}));
    const auto to = static_cast<int32_t>(max(min(r->high[h] - at, int64_t{S::kKeys}), int64_t{-1}));
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * h + i];
        if (kMasked && (8 * n + i < from || 8 * n + i > to)) x = -INFINITY;
        top = fmaxf(top, x);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
    const float base = top == -INFINITY ? 0.0f : top;
    factor[h] = exp2_approx(r->m[h] - base);
    r->m[h] = top;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < S::kKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float& x = s[n][2 * h + i];
        x = exp2_approx(x - base);
        sum += x;
      }
    }
    r->l[h] = fmaf(r->l[h], factor[h], sum);
  }
}
template <class S>
__device__ __forceinline__ void fold_scores(Running* r, uint64_t t0, bool whole, Scores<S>& s,
                                            float (&factor)[2]) {
  if (whole) {
    fold_tile<S, false>(r, t0, s, factor);
  } else {
    fold_tile<S, true>(r, t0, s, factor);
  }
}
template <class S>
__device__ __forceinline__ void scale_sums(const float (&factor)[2], Sums<S>& o) {
  // Maxima grow seldom.
  if (!__any_sync(0xFFFFFFFFu, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < S::kOutDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) o[n][i] *= factor[i / 2];
  }
}
/// Scores become weights; sums and o shrink by the growth of the maxima.
template <class S>
__device__ __forceinline__ void fold(Running* r, uint64_t t0, bool whole, Scores<S>& s,
                                     Sums<S>& o) {
  float factor[2];
  fold_scores<S>(r, t0, whole, s, factor);
  scale_sums<S>(factor, o);
}

template <class S>
__device__ __forceinline__ void store(const AttentionArgs& a, const RowBlock& b, uint32_t kv,
                                      uint32_t vector, uint32_t d0, const Running& r,
                                      const Sums<S>& o) {
  constexpr uint32_t kDim = S::kDim;
  const uint32_t first_row = a.p.batch.table.sequences[b.sequence].first_row + b.row0;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    float sum = r.l[h];
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    const uint32_t v = vector + 8u * static_cast<uint32_t>(h);
    if (v >= b.n * a.group) continue;
    const uint64_t row = first_row + v / a.group;
    const uint32_t head = kv * a.group + v % a.group;
    const float inverse = inverse_sum(a.p, head, r.m[h], sum);
    float* to = a.p.o + row * a.p.o_stride + uint64_t{head} * kDim;
#pragma unroll
    for (int n = 0; n < S::kOutDim / 8; ++n) {
      const uint32_t d = d0 + static_cast<uint32_t>(n) * 8 + threadIdx.x % 4 * 2;
      float2 x = {o[n][2 * h] * inverse, o[n][2 * h + 1] * inverse};
      if (a.p.gate != nullptr) {
        x.x *= gate_factor(a.p, row, head, d);
        x.y *= gate_factor(a.p, row, head, d + 1);
      }
      *reinterpret_cast<float2*>(to + d) = x;
    }
  }
}

/// All tiles of keys that the block's rows see. The first one's row addresses were found. While a
/// tile is multiplied, the next one's bytes are on their way. score(s): a tile's scores; weigh(s):
/// o += weights * values.
template <class S, class Map, class Score, class Weigh>
__device__ __forceinline__ void run_tiles(const Args& f, const RowBlock& b, const Map& map,
                                          uint32_t e0, uint8_t* shared, Running* run, Sums<S>& o,
                                          const Score& score, const Weigh& weigh) {
  const KvLayer& l = f.a.p.kv;
  const uint32_t n = row_elements(l, map, S::kDim);
  auto* rows = reinterpret_cast<uint64_t*>(shared + f.plan.rows);
  const uint64_t first = b.begin / S::kKeys, last = (b.end + S::kKeys - 1) / S::kKeys;
  // Keys that every row of the block sees.
  const uint64_t all_from = l.window != 0 && b.end > b.low + l.window ? b.end - l.window : b.low;
  fetch<S>(f, e0, n, shared);
  for (uint64_t tile = first; tile < last; ++tile) {
    const uint64_t t0 = tile * S::kKeys;
    cp_async_wait<0>();
    __syncthreads();
    if (tile + 1 < last) find_tile_rows<S>(f, b, map, e0, t0 + S::kKeys, rows);
    convert<S>(l.k_dtype, e0, shared + f.plan.k_raw, shared + f.plan.k_scale,
               shared + f.plan.k_tile);
    convert<S>(l.v_dtype, e0, shared + f.plan.v_raw, shared + f.plan.v_scale,
               shared + f.plan.v_tile);
    S::publish();
    __syncthreads();
    if (tile + 1 < last) fetch<S>(f, e0, n, shared);
    Scores<S> s;
    score(s);
    const bool whole = t0 >= all_from && t0 + S::kKeys <= b.first_key + 1;
    fold<S>(run, t0, whole, s, o);
    weigh(s);
  }
}

/// The same where keys and values share one buffer: values arrive while scores are computed, the
/// next keys while values are multiplied with the weights.
template <class S, class Map, class Score, class Weigh>
__device__ __forceinline__ void run_tiles_in_turn(const Args& f, const RowBlock& b, const Map& map,
                                                  uint32_t e0, uint8_t* shared, Running* run,
                                                  Sums<S>& o, const Score& score,
                                                  const Weigh& weigh) {
  const KvLayer& l = f.a.p.kv;
  const uint32_t n = row_elements(l, map, S::kDim);
  auto* rows = reinterpret_cast<uint64_t*>(shared + f.plan.rows);
  const uint64_t first = b.begin / S::kKeys, last = (b.end + S::kKeys - 1) / S::kKeys;
  const uint64_t all_from = l.window != 0 && b.end > b.low + l.window ? b.end - l.window : b.low;
  fetch_half<S>(f, e0, n, false, shared);
#pragma unroll 1
  for (uint64_t tile = first; tile < last; ++tile) {
    const uint64_t t0 = tile * S::kKeys;
    cp_async_wait<0>();
    __syncthreads();  // the keys are there, and the values of the tile before are used up
    convert<S>(l.k_dtype, e0, shared + f.plan.k_raw, shared + f.plan.k_scale,
               shared + f.plan.k_tile);
    __syncthreads();
    fetch_half<S>(f, e0, n, true, shared);
    Scores<S> s;
    score(s);
    const bool whole = t0 >= all_from && t0 + S::kKeys <= b.first_key + 1;
    fold<S>(run, t0, whole, s, o);
    cp_async_wait<0>();
    __syncthreads();  // the values are there, and the keys are used up
    if (tile + 1 < last) find_tile_rows<S>(f, b, map, e0, t0 + S::kKeys, rows);
    convert<S>(l.v_dtype, e0, shared + f.plan.v_raw, shared + f.plan.v_scale,
               shared + f.plan.v_tile);
    __syncthreads();
    if (tile + 1 < last) fetch_half<S>(f, e0, n, false, shared);
    weigh(s);
  }
}

/// `row`: row_bits().
inline uint32_t granule_of(KvDtype type, uint32_t row, uint32_t dim) {
  return !has_scales(type) || (row | value_bytes(type, dim)) % 16 == 0 ? 16 : 2;
}

/// Arguments of a launch with blocks of S::kVectors vectors.
template <class S>
Args make_args(const AttentionArgs& a) {
  Args f = {};
  const KvLayer& l = a.p.kv;
  f.a = a;
  f.plan = make_plan<S>(l.k_dtype, l.v_dtype);
  f.k_granule = granule_of(l.k_dtype, row_bits(a.p, l.k_row_bytes), S::kDim);
  f.v_granule = granule_of(l.v_dtype, row_bits(a.p, l.v_row_bytes), S::kDim);
  f.a.block_rows = S::kVectors / a.group;
  f.a.n_blocks = most_row_blocks(a.p.batch, f.a.block_rows);
  return f;
}

}  // namespace sharpi::cuda::flash
