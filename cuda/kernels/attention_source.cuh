// SPDX-License-Identifier: MIT
// Where the keys and values of a warp of split attention lie, and how they get into its registers.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/attention_common.cuh"
#include "cuda/kernels/kv_stream.cuh"

namespace sharpi::cuda::split {

constexpr int kTile = kSplitTile;
static_assert(kTile == kStreamTile);

/// The tiles of one warp.
struct Source {
  const KvLayer& l;
  const RowBlock& b;
  const KeyMap& map;
  uint32_t e0;                   // first element of the slice in a row
  uint64_t first;                // first key of the warp's tile 0
  uint32_t step;                 // keys from one of its tiles to the next
  uint32_t n_tiles;              // of the warp
  bool k_aligned, v_aligned;     // q8_0: pieces of 8 bytes are aligned
  uint32_t whole_from, n_whole;  // full attention: tiles whose keys are all there

  __device__ __forceinline__ uint64_t key(uint32_t tile) const {
    return first + uint64_t{tile} * step;
  }
  /// Tiles that a cursor finds.
  __device__ __forceinline__ void count_whole() {
    whole_from = b.begin > first ? 1 : 0;
    n_whole = 0;
    if (l.window == 0 && b.end >= key(whole_from) + kTile) {
      n_whole = static_cast<uint32_t>((b.end - kTile - key(whole_from)) / step) + 1;
    }
  }
  __device__ __forceinline__ bool whole(uint32_t tile) const { return tile - whole_from < n_whole; }
  /// Rings: all keys of the tile are there, side by side.
  __device__ __forceinline__ bool whole_in_ring(uint64_t t0) const {
    return l.window != 0 && map.group.ring_slots % kTile == 0 && t0 >= b.begin &&
           t0 + kTile <= b.end && t0 + kTile <= map.position;
  }
  __device__ __forceinline__ const std::byte* in_ring(uint64_t t0, bool value) const {
    return store_row(l, map.group, static_cast<uint32_t>(t0) % map.group.ring_slots, value);
  }
  /// The row of key t0 + r; keys that are not there give the nearest one that is (their scores are
  /// masked, their weights zero).
  __device__ __forceinline__ const std::byte* row(uint64_t t0, uint32_t r, bool value) const {
    const uint64_t t = min(max(t0 + r, b.begin), b.end - 1);
    return key_row(l, map, t, value);
  }
};

/// A lane's place in the next tile of full attention; tiles are fetched in order.
struct Cursor {
  const std::byte* at;
  uint32_t row_bytes, in_block;
  __device__ __forceinline__ void start(const Source& s, bool value, uint32_t row,
                                        uint32_t offset) {
    row_bytes = value ? s.l.v_row_bytes : s.l.k_row_bytes;
    in_block = static_cast<uint32_t>(s.first % kKvBlockSlots);
    at = s.l.window == 0 ? store_row(s.l, s.map.group, s.first, value) + row * row_bytes + offset
                         : nullptr;
  }
  __device__ __forceinline__ void advance(const Source& s) {
    at += s.step * row_bytes;
    in_block += s.step;
    if (in_block >= kKvBlockSlots) {
      in_block -= kKvBlockSlots;
      at += s.l.block_stride - kKvBlockSlots * row_bytes;
    }
  }
  /// Addresses of rows which(0), which(1), .. of a tile; the lane's part of a row is at `offset`.
  template <int kRows, class Which>
  __device__ __forceinline__ void find(const Source& s, uint32_t tile, bool value, uint32_t offset,
                                       const Which& which, const std::byte* (&rows)[kRows]) const {
    const uint32_t row0 = which(0);
    if (s.whole(tile)) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) rows[i] = at + (which(i) - row0) * row_bytes;
      return;
    }
    const uint64_t t0 = s.key(tile);
    if (s.whole_in_ring(t0)) {
      const std::byte* from = s.in_ring(t0, value) + offset;
#pragma unroll
      for (int i = 0; i < kRows; ++i) rows[i] = from + which(i) * row_bytes;
      return;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) rows[i] = s.row(t0, which(i), value) + offset;
  }
};

/// Keys on their way into registers.
template <KvDtype kType, int kSlice>
struct KeyFetch {
  using Codec = KeyCodec<kType, kSlice>;
  static __device__ __forceinline__ uint32_t offset(const Source& s) {
    return (s.e0 + threadIdx.x % 4 * (Codec::kDepth / 4)) * element_bytes(kType);
  }
  /// One half (eight keys) of a tile or both; the cursor is at its row `first * 8` + g.
  template <int kHalves>
  static __device__ __forceinline__ void run(const Source& s, Cursor* cursor, uint32_t tile,
                                             uint32_t first, uint32_t* raw) {
    const uint32_t g = threadIdx.x % 32 / 4;
    const std::byte* rows[2];
    cursor->find<2>(
        s, tile, false, offset(s), [&](int i) { return g + 8 * static_cast<uint32_t>(i); }, rows);
#pragma unroll
    for (uint32_t i = 0; i < kHalves; ++i) {
      Codec::load(kHalves == 2 ? rows[i]
                  : first == 0 ? rows[0]
                               : rows[1],
                  s.k_aligned, raw + i * Codec::kHalf);
    }
    if (kHalves == 2 || first == 1) cursor->advance(s);
  }
};

/// Values of a tile: all chunks, or one.
template <KvDtype kType, int kSlice>
struct ValueFetch {
  using Codec = ValueCodec<kType, kSlice>;
  static __device__ __forceinline__ uint32_t offset(const Source& s) {
    return (s.e0 + threadIdx.x % 32 / 4 * 8) * element_bytes(kType);
  }
  template <int kChunks>
  static __device__ __forceinline__ void run(const Source& s, Cursor* cursor, uint32_t tile,
                                             int first, uint32_t* raw) {
    const uint32_t t = threadIdx.x % 4;
    const std::byte* rows[4];
    cursor->find<4>(
        s, tile, true, offset(s),
        [&](int i) { return 2 * t + static_cast<uint32_t>(i % 2 + i / 2 * 8); }, rows);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Codec::load(rows[i], s.v_aligned, first + c, raw + c * Codec::kChunk + i * Codec::kWords);
      }
    }
    if (first + kChunks == Codec::kChunks) cursor->advance(s);
  }
};

/// Starts copying a tile's scales: lanes below 16 a key's, the others a value's. One commit group.
template <int kSlice>
__device__ __forceinline__ void fetch_scales(const Source& s, Cursor* cursor, uint32_t tile,
                                             uint8_t* ring) {
  const uint32_t lane = threadIdx.x % 32, row = lane % kTile;
  const bool value = lane >= kTile;
  if (tile < s.n_tiles && (value ? s.l.v_dtype : s.l.k_dtype) == KvDtype::kQ8_0) {
    uint8_t* to = ring + tile % kStreamStages * kStreamStage + lane * kStreamScales;
    const uint32_t offset = s.l.n_heads * s.l.head_dim + s.e0 / 32 * 2;
    const std::byte* from[1];
    cursor->find<1>(
        s, tile, value, offset, [&](int) { return row; }, from);
    const bool aligned = value ? s.v_aligned : s.k_aligned;
    if (kSlice == 128 && aligned) {
      cp_async_8(shared_address(to), from[0]);
    } else if (kSlice == 64 && aligned) {
      cp_async_4(shared_address(to), from[0]);
    } else {
      const uint32_t n = (s.e0 + kSlice - 1) / 32 - s.e0 / 32 + 1;
      for (uint32_t i = 0; i < n; ++i) {
        reinterpret_cast<uint16_t*>(to)[i] = reinterpret_cast<const volatile uint16_t*>(from[0])[i];
      }
    }
    cursor->advance(s);
  }
  cp_async_commit();
}

}  // namespace sharpi::cuda::split
