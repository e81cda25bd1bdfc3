// SPDX-License-Identifier: MIT
// Attention of few rows over bf16, q8_0 or q4 rows, keys and values each in a codec of their own
// (kStepCodecs): the ring of a warp, how tiles get there, and queries as operands. kSeveral: a
// block may have several rows of a sequence (drafts that are verified); a decode step has one.
// Slices of 128 dims, a warp each; lane (g, t) = (lane / 4, lane % 4). Instructions of a tile are
// what long contexts have too many of, so addresses are sums of constants, and values of q8_0, or
// the levels that those of q4 stand for, are multiplied as codes whose bias is taken off once, at
// the end. Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/attention/attention_step_plan.h"
#include "cuda/kernels/kv/kv_stream.cuh"

namespace sharpi::cuda::step {

constexpr uint32_t kSlice = kStepSlice;
constexpr int kWarps = kStepWarps, kThreads = kStepThreads;

/// Multiplied as signed bytes, and of these stored as indices of them, two a byte.
template <KvDtype kType>
constexpr bool kBytes = uses_codes(kType);
template <KvDtype kType>
constexpr bool kIndices = KvCodecTraits<kType>::kProduct == KvProduct::kLevels;

/// A slice of the rows of a tile, all keys or all values, in pieces of 16 bytes.
template <KvDtype kCodec>
struct SliceRows {
  static constexpr KvDtype kType = kCodec;
  static constexpr uint32_t kRow = value_bytes(kType, kSlice), kPieces = kRow / 16;
  static constexpr uint32_t kEach = kSplitTile * kPieces / 32;  // pieces of a lane
  static constexpr uint32_t kRows = 32 / kPieces;               // of one piece a lane
  static_assert(!kIndices<kType> || kRow == 64);

  /// Of the first piece that the lane copies.
  static __device__ __forceinline__ uint32_t row() { return threadIdx.x % 32 / kPieces; }
  static __device__ __forceinline__ uint32_t column() { return threadIdx.x % 32 % kPieces * 16; }
};

/// A warp's stage of its ring: keys, values; codes: then eight bytes of scales of each. Pieces of a
/// row change places from row to row, so that lanes meet no bank twice; rows of 64 bytes do so in
/// pairs that fill a line of 128.
template <KvDtype kKey, KvDtype kValue>
struct Stage {
  using K = SliceRows<kKey>;
  using V = SliceRows<kValue>;
  static constexpr uint32_t kKeys = kSplitTile;
  static constexpr bool kCodes = kBytes<kKey>;
  static constexpr uint32_t kValues = kKeys * K::kRow, kScales = kValues + kKeys * V::kRow;
  static constexpr uint32_t kBytesOf = kScales + (kCodes ? 2 * kKeys * 8 : 0);
  static_assert(kBytes<kKey> == kBytes<kValue> && kValues % 128 == 0 && kBytesOf % 128 == 0);

  /// Where a byte of a key, or of a key's values, lies.
  static __device__ __forceinline__ uint32_t key_at(uint32_t row, uint32_t column) {
    if constexpr (kIndices<kKey>) return row * K::kRow + (column ^ (row >> 1 & 3u) << 4);
    return row * K::kRow + (column ^ DeviceCodec<kKey>::key_swizzle(row));
  }
  static __device__ __forceinline__ uint32_t value_at(uint32_t row, uint32_t column) {
    if constexpr (kIndices<kValue>) {
      return kValues + ((row * V::kRow + column) ^ (row >> 1 & 3u) << 5);
    }
    return kValues + row * V::kRow + (column ^ DeviceCodec<kValue>::value_swizzle(row));
  }
};

/// Where the tiles of a block are.
struct Tiles {
  const std::byte* base;  // of the KV group, the first byte of a row's values included
  uint64_t block_stride;
  uint32_t k_row_bytes, v_row_bytes;  // the same variable where the codecs are the same
  uint32_t k_offset, v_offset;        // of keys also what their first byte lies further on
  uint32_t k_scales, v_scales;        // from the slice's bytes to its scales
  uint32_t ring;                      // slots, 0 = not a ring
  uint32_t begin, newest;             // keys that a row of the block sees: [begin, newest]
  uint32_t own;                       // the first key of this call; of one row the newest
  const std::byte *new_k, *new_v;     // windowed layers: where its rows are, others behind them
  // Several rows: the newest key that the block's first row sees, its oldest one or that of all
  // rows without a window (0), no row's older than `low`; and query heads of a KV head.
  uint32_t first_newest, window, low, group;

  /// The rows' first key and last key that all of them see.
  __device__ __forceinline__ uint32_t begin_of(uint32_t row) const {
    const uint32_t behind = first_newest + row + 1;
    return window != 0 && behind > low + window ? behind - window : low;
  }
};

/// The row of a key of this call in a windowed layer.
template <bool kSeveral>
__device__ __forceinline__ const std::byte* new_row(const Tiles& s, uint32_t key, bool value) {
  const std::byte* first = value ? s.new_v : s.new_k;
  if constexpr (kSeveral) return first + (key - s.own) * (value ? s.v_row_bytes : s.k_row_bytes);
  return first;
}

/// The rows of a slot, before k_offset and v_offset.
struct SlotRows {
  const std::byte *k, *v;
};
__device__ __forceinline__ SlotRows slot_at(const Tiles& s, uint32_t slot) {
  const uint64_t block = slot / kKvBlockSlots * s.block_stride;
  const uint32_t in_block = slot % kKvBlockSlots;
  return {s.base + (block + uint64_t{in_block * s.k_row_bytes}),
          s.base + (block + uint64_t{in_block * s.v_row_bytes})};
}

/// A tile of which some keys are not seen, or not side by side: row by row, zeros for the others.
template <class T, bool kSeveral>
__device__ __forceinline__ void fetch_some(const Tiles& s, uint32_t key, uint32_t to) {
  using K = typename T::K;
  using V = typename T::V;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t slot0 = s.ring != 0 ? key % s.ring : key;
  const auto row_of = [&](uint32_t r, bool value) {
    uint32_t slot = slot0 + r;
    if (s.ring != 0 && slot >= s.ring) slot -= s.ring;
    const SlotRows at = slot_at(s, slot);
    const std::byte* from = value ? at.v + s.v_offset : at.k + s.k_offset;
    const bool is_new = kSeveral ? key + r >= s.own : key + r == s.newest;
    return s.ring != 0 && is_new ? new_row<kSeveral>(s, key + r, value) : from;
  };
#pragma unroll 1
  for (uint32_t i = 0; i < K::kEach + V::kEach; ++i) {
    const bool value = i >= K::kEach;
    const uint32_t r = value ? (i - K::kEach) * V::kRows + V::row() : i * K::kRows + K::row();
    const uint32_t column = value ? V::column() : K::column();
    const bool seen = key + r >= s.begin && key + r <= s.newest;
    cp_async_16_zfill(to + (value ? T::value_at(r, column) : T::key_at(r, column)),
                      seen ? row_of(r, value) + column : s.base, seen ? 16 : 0);
  }
  if constexpr (T::kCodes) {
#pragma unroll 1
    for (uint32_t i = lane; i < 2 * T::kKeys; i += 32) {
      const uint32_t r = i % T::kKeys;
      const bool value = i >= T::kKeys, seen = key + r >= s.begin && key + r <= s.newest;
      const std::byte* from = seen ? row_of(r, value) + (value ? s.v_scales : s.k_scales) : s.base;
      cp_async_8_zfill(to + T::kScales + i * 8, from, seen ? 8 : 0);
    }
  }
}

/// Returns the same value, but hides from the compiler how it was computed, which would otherwise
/// compute it again in every tile.
__device__ __forceinline__ uint32_t kept(uint32_t x) {
  return __shfl_sync(0xFFFFFFFFu, x, static_cast<int>(threadIdx.x % 32));
}

/// The lane's part of whole tiles: from a tile's first row, and into a stage.
struct LaneCopy {
  uint32_t k, v, k_step, v_step;  // steps: to its next row
  uint32_t scales;                // of keys in the lower lanes, of values in the others
  uint32_t to_k, to_v, to_scales;
};
template <class T>
__device__ __forceinline__ LaneCopy make_copy(const Tiles& s) {
  using K = typename T::K;
  using V = typename T::V;
  const uint32_t lane = threadIdx.x % 32;
  LaneCopy c = {};
  c.k = kept(s.k_offset + (K::row() * s.k_row_bytes + K::column()));
  c.v = kept(s.v_offset + (V::row() * s.v_row_bytes + V::column()));
  if (T::kCodes) {
    const bool value = lane >= T::kKeys;
    c.scales = kept((value ? s.v_offset : s.k_offset) +
                    lane % T::kKeys * (value ? s.v_row_bytes : s.k_row_bytes) +
                    (value ? s.v_scales : s.k_scales));
  }
  c.k_step = K::kRows * s.k_row_bytes;
  c.v_step = V::kRows * s.v_row_bytes;
  c.to_k = kept(T::key_at(K::row(), K::column()));
  c.to_v = kept(T::value_at(V::row(), V::column()));
  c.to_scales = kept(T::kScales + lane * 8);
  return c;
}

/// Into a stage: row i of the lane's rows of values, which are V::kRows apart: 2 (bf16), 4 (q8_0),
/// or 8 (q4), whose pieces lie alike.
template <class V>
__device__ __forceinline__ uint32_t value_row(const LaneCopy& c, uint32_t i) {
  constexpr uint32_t kRow = V::kRows * V::kRow;
  if constexpr (kIndices<V::kType>) return c.to_v + i * kRow;
  return (c.to_v ^ (kBytes<V::kType> ? (i & 1u) << 6 : (i & 3u) << 5)) + i * kRow;
}

/// The tile at `at` with the newest key, or with keys of this call, which windowed layers have
/// elsewhere; zeros behind the newest.
template <class T, bool kSeveral>
__device__ __forceinline__ void fetch_last(const Tiles& s, const LaneCopy& c, const SlotRows& at,
                                           uint32_t key, uint32_t to) {
  using K = typename T::K;
  using V = typename T::V;
  const uint32_t lane = threadIdx.x % 32, newest = s.newest - key;
#pragma unroll
  for (uint32_t i = 0; i < K::kEach + V::kEach; ++i) {
    const bool value = i >= K::kEach;
    const uint32_t n = value ? i - K::kEach : i;
    const uint32_t r = value ? V::row() + n * V::kRows : K::row() + n * K::kRows;
    const std::byte* from = value ? at.v + (c.v + n * c.v_step) : at.k + (c.k + n * c.k_step);
    const bool is_new = kSeveral ? key + r >= s.own : r == newest;
    if (s.ring != 0 && is_new) {
      from = new_row<kSeveral>(s, key + r, value) + (value ? V::column() : K::column());
    }
    const uint32_t into = value ? value_row<V>(c, n) : c.to_k + n * K::kRows * K::kRow;
    cp_async_16_zfill(to + into, from, r <= newest ? 16 : 0);
  }
  if constexpr (T::kCodes) {
    const uint32_t r = lane % T::kKeys;
    const bool value = lane >= T::kKeys;
    const std::byte* from = (value ? at.v : at.k) + c.scales;
    const bool is_new = kSeveral ? key + r >= s.own : r == newest;
    if (s.ring != 0 && is_new) {
      from = new_row<kSeveral>(s, key + r, value) + (value ? s.v_scales : s.k_scales);
    }
    cp_async_8_zfill(to + c.to_scales, from, r <= newest ? 8 : 0);
  }
}

/// Starts the copy of the tile from `key` on into the stage at `to`.
template <class T, bool kSeveral>
__device__ __forceinline__ void fetch(const Tiles& s, const LaneCopy& c, uint32_t key,
                                      uint32_t to) {
  if (key < s.begin || s.ring % T::kKeys != 0) return fetch_some<T, kSeveral>(s, key, to);
  const SlotRows at = slot_at(s, s.ring != 0 ? key % s.ring : key);
  const uint32_t stored = !kSeveral     ? s.newest + (s.ring != 0 ? 0 : 1)
                          : s.ring != 0 ? s.own
                                        : s.newest + 1;
  if (key + T::kKeys > stored) return fetch_last<T, kSeveral>(s, c, at, key, to);
  using K = typename T::K;
  using V = typename T::V;
#pragma unroll
  for (uint32_t i = 0; i < K::kEach; ++i) {
    cp_async_16(to + c.to_k + i * K::kRows * K::kRow, at.k + (c.k + i * c.k_step));
  }
#pragma unroll
  for (uint32_t i = 0; i < V::kEach; ++i) {
    cp_async_16(to + value_row<V>(c, i), at.v + (c.v + i * c.v_step));
  }
  if constexpr (T::kCodes) {
    cp_async_8(to + c.to_scales, (threadIdx.x % 32 < T::kKeys ? at.k : at.v) + c.scales);
  }
}

// --- queries ---

/// A slice's queries in shared memory are A operands of products, word by word as lanes take them:
/// four words a lane and product. With up to eight vectors (kPairs) rows 8 to 15 of a product are
/// what rounding lost of rows 0 to 7; q8_0 with more: products of coarse and of fine terms in turn.
template <KvDtype kType, bool kPairs>
constexpr uint32_t kProducts = kBytes<kType>&& kPairs ? 4 : 8;

/// The lane's elements 4 * lane, .. of vector v to operands. Returns what a unit is worth (codes).
template <KvDtype kType, bool kPairs>
__device__ __forceinline__ float store_query(float4 x, uint32_t v, uint4* to) {
  const uint32_t lane = threadIdx.x % 32, c = lane / 8, t = lane % 8 / 2, r = lane % 2;
  if constexpr (kBytes<kType>) {
    const float most = fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w)));
    const float odd = (x.x - x.x) + (x.y - x.y) + (x.z - x.z) + (x.w - x.w);  // NaN if not finite
    const uint32_t bits = odd == 0.0f ? __float_as_uint(most) : 0x7FC00000u;
    const float top = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, bits));
    const float inverse = top > 1e-30f ? __fdividef(127.0f, top) : 0.0f;
    uint32_t coarse = 0, fine = 0;
    const float y[4] = {x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int first = __float2int_rn(y[i]);
      const int second = __float2int_rn((y[i] - static_cast<float>(first)) * kQueryFine);
      coarse |= static_cast<uint32_t>(max(-127, min(127, first)) & 255) << (8 * i);
      fine |= static_cast<uint32_t>(max(-127, min(127, second)) & 255) << (8 * i);
    }
    if constexpr (kPairs) {
      reinterpret_cast<uint2*>(to + c * 32 + v * 4 + t)[r] = {coarse, fine};
    } else {
      auto* at = reinterpret_cast<uint32_t*>(to + c * 64 + v % 8 * 4 + t) + 2 * r + v / 8;
      at[0] = coarse;
      at[32 * 4] = fine;
    }
    return top * (1.0f / (127.0f * kQueryFine));
  } else {
    const uint32_t a = pack_bf16(x.x, x.y), b = pack_bf16(x.z, x.w);
    uint4* at = to + (c * 2 + r) * 32 + v % 8 * 4 + t;
    if constexpr (kPairs) {
      *at = {a, pack_rest(true, x.x, x.y, a), b, pack_rest(true, x.z, x.w, b)};
    } else {
      reinterpret_cast<uint32_t*>(at)[v / 8] = a;
      reinterpret_cast<uint32_t*>(at)[v / 8 + 2] = b;
    }
    return 1.0f;
  }
}

template <uint32_t kCount>
__device__ __forceinline__ void load_operands(const uint4* from, uint32_t (&q)[4 * kCount]) {
#pragma unroll
  for (uint32_t i = 0; i < kCount; ++i) {
    const uint4 x = from[i * 32 + threadIdx.x % 32];
    q[4 * i] = x.x, q[4 * i + 1] = x.y, q[4 * i + 2] = x.z, q[4 * i + 3] = x.w;
  }
}

}  // namespace sharpi::cuda::step
