// SPDX-License-Identifier: MIT
// What feeds attention's consumers with tiles of f16: warps that read stored rows of keys or of
// values, turn them into f16 and write them where the products read. Many rows are on their way at
// a time, by asynchronous copies to a ring of pieces that each thread has in shared memory. Blocks
// of a cluster need the same tiles: each turns its part of the rows and copies it to the others.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/attention/attention_pieces.cuh"
#include "cuda/kernels/attention/attention_warpgroups.cuh"
#include "cuda/kernels/cluster.cuh"

namespace sharpi::cuda::feed {

using namespace pieces;

/// A piece: eight elements of a stored row as they lie there, and the word with the scale of their
/// block. A thread's ring of pieces in shared memory, which nobody else reads or writes: piece p of
/// the ring lies kFeeders pieces behind piece p - 1. Batches of kBatch pieces go together.
template <class S, KvDtype kType>
struct Ring {
  static constexpr uint32_t kValues = value_bytes(kType, 8);  // bytes of a piece
  static constexpr uint32_t kBytes = kValues + (has_scales(kType) ? 4 : 0);
  static constexpr uint32_t kBatch = kType == KvDtype::kF32 ? 2 : 4;
  static constexpr uint32_t kFit = S::kRingBytes / S::kFeeders / kBytes / kBatch;
  static constexpr uint32_t kBatches = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  static constexpr uint32_t kPieces = kBatches * kBatch;
  uint32_t values, scales;  // of the thread's piece 0
  __device__ __forceinline__ Ring(uint32_t at, uint32_t thread)
      : values(at + thread * kValues), scales(at + kPieces * S::kFeeders * kValues + thread * 4) {}
  /// Piece i of batch `place`.
  __device__ __forceinline__ uint32_t value_at(uint32_t place, uint32_t i) const {
    return values + place * (kBatch * S::kFeeders * kValues) + i * (S::kFeeders * kValues);
  }
  __device__ __forceinline__ uint32_t scale_at(uint32_t place, uint32_t i) const {
    return scales + place * (kBatch * S::kFeeders * 4) + i * (S::kFeeders * 4);
  }
};

/// A piece of the ring as f16; upper: its scale is the word's upper half.
template <KvDtype kType>
__device__ __forceinline__ void piece_f16(uint32_t at, uint32_t scale_at, bool upper,
                                          uint32_t (&r)[4]) {
  Piece<kType> piece;
  load_piece<kType>(at, scale_at, &piece);
  turn_piece<kType>(piece, upper, r);
}

/// Where the keys' or the values' rows of a sequence lie: slots of blocks in its store, which may
/// be a ring, and from key number `chunk_from` on in the scratch of its call. Keys are counted from
/// the first of the first tile.
struct Source {
  const std::byte *store, *chunk;
  uint32_t store_stride, chunk_stride;  // of a block of slots
  uint32_t row_bytes;
  uint32_t n_elements;  // of a row
  uint32_t from, to;    // keys that there are: [from, to)
  int32_t chunk_from;
  uint32_t first_slot, ring;  // of key 0; slots of the ring, or none

  /// A key's row; `slot` is what its slot would be if a ring had no end.
  __device__ __forceinline__ const std::byte* row(uint32_t key, uint32_t slot) const {
    if (static_cast<int32_t>(key) >= chunk_from) {
      const uint32_t at = key - static_cast<uint32_t>(chunk_from);
      return chunk + uint64_t{at / kKvBlockSlots} * chunk_stride + at % kKvBlockSlots * row_bytes;
    }
    while (slot >= ring) slot -= ring;
    return store + uint64_t{slot / kKvBlockSlots} * store_stride + slot % kKvBlockSlots * row_bytes;
  }
  /// Whether the rows of keys [key, key + n) all are there and follow each other in one block.
  __device__ __forceinline__ bool is_straight(uint32_t key, uint32_t slot, uint32_t n) const {
    const bool chunk_rows = static_cast<int32_t>(key) >= chunk_from;
    const uint32_t at = chunk_rows ? key - static_cast<uint32_t>(chunk_from) : slot;
    return key >= from && key + n <= to && at % kKvBlockSlots + n <= kKvBlockSlots &&
           (chunk_rows || (at + n <= ring && static_cast<int32_t>(key + n) <= chunk_from));
  }
};

/// Of keys [begin, end), counted from key `zero`.
__device__ __forceinline__ Source make_source(const AttentionArgs& a, uint32_t sequence,
                                              uint64_t zero, uint64_t begin, uint64_t end,
                                              bool value) {
  const KvLayer& l = a.p.kv;
  const KeyMap map = make_key_map(a, sequence);
  Source s;
  s.store = store_row(l, map.group, 0, value);
  s.chunk = l.window != 0 ? chunk_row(l, map.chunk_block, 0, value) : nullptr;
  s.store_stride = static_cast<uint32_t>(l.block_stride);
  s.chunk_stride = kKvBlockSlots * (l.k_row_bytes + l.v_row_bytes);
  s.row_bytes = value ? l.v_row_bytes : l.k_row_bytes;
  s.n_elements = l.n_heads * l.head_dim;
  s.from = static_cast<uint32_t>(begin - zero);
  s.to = static_cast<uint32_t>(end - zero);
  s.ring = l.window != 0 ? map.group.ring_slots : ~0u;
  s.chunk_from = l.window != 0 ? static_cast<int32_t>(map.position - zero) : INT32_MAX;
  s.first_slot = static_cast<uint32_t>(zero) % s.ring;
  return s;
}

/// Where rows are on their way from: the next batch of pieces that is asked for.
struct Ahead {
  const std::byte* row;  // of the thread's first piece of the tile, if rows are straight
  uint32_t key, slot;    // of the tile's first key
  uint32_t batch;        // of the tile
  bool straight;         // the tile's rows follow each other
};

/// The barriers of two tiles each: `full` is told, `empty` tells.
struct Barriers {
  uint32_t full, empty;
};

/// The feeders of keys, or of values, wait for each other.
template <class S>
__device__ __forceinline__ void meet(uint32_t named) {
  asm volatile("bar.sync %0, %1;" ::"r"(named), "n"(S::kFeeders) : "memory");
}

/// What a block has made of a tile goes to the other blocks of its cluster, by one thread.
template <class S>
__device__ __forceinline__ void spread_tile(uint32_t tile, uint32_t rank, uint32_t full) {
  constexpr uint32_t kPart = S::kTileBytes / S::kCluster, kBlocks = S::kDim / 64;
  constexpr uint32_t kBytes = kPart / kBlocks;  // of the rows of a block of 64 dims
  mbarrier_expect(full, S::kTileBytes - kPart);
#pragma unroll
  for (uint32_t i = 1; i < S::kCluster; ++i) {
    const uint32_t to = (rank + i) % S::kCluster, bar = in_block(full, to);
#pragma unroll
    for (uint32_t c = 0; c < kBlocks; ++c) {
      const uint32_t at = tile + c * S::kKeys * flash::kBlockRowBytes + rank * kBytes;
      bulk_copy_far(in_block(at, to), at, kBytes, bar);
    }
  }
}

/// All tiles of a block, by S::kFeeders threads of which this is number `thread`. Tile j goes to
/// tiles + j % 2 * S::kTileBytes once nobody reads it. A batch of pieces is turned while the next
/// ones are on their way to `ring_bytes`. Blocks of a cluster share tiles: each turns its part of
/// the rows, number `rank`, for all. named: a barrier of these threads alone.
template <class S, KvDtype kType>
__device__ __forceinline__ void feed_tiles(const Source& s, uint32_t e0, uint32_t thread,
                                           uint32_t rank, uint32_t named, uint32_t n_tiles,
                                           uint32_t tiles, uint32_t ring_bytes, Barriers bars) {
  using R = Ring<S, kType>;
  constexpr uint32_t kPerRow = S::kDim / 8, kStep = S::kFeeders / kPerRow;   // rows of one pass
  constexpr uint32_t kRows = S::kKeys / S::kCluster;                         // of a tile, here
  constexpr uint32_t kBatch = R::kBatch, kBatches = kRows / kStep / kBatch;  // of a tile
  constexpr uint32_t kAhead = R::kBatches;
  static_assert(S::kFeeders % kPerRow == 0 && kRows % (kStep * kBatch) == 0);
  // Rows of passes lie kStep rows apart, and where elements of a row lie depends on the row
  // modulo 8.
  static_assert(8 % kStep == 0 || kStep % 8 == 0);
  static_assert(kStep >= 8 || kBatch * kStep % 8 == 0);
  const R ring(ring_bytes, thread);
  const uint32_t own = rank * kRows, r0 = own + thread / kPerRow, d = thread % kPerRow * 8;
  const uint32_t in_row = value_bytes(kType, e0 + d);
  const uint32_t scale = value_bytes(kType, s.n_elements) + (e0 + d) / 32 * 2 - in_row;
  const bool upper = ((in_row + scale) & 2) != 0;
  Ahead next = {nullptr, 0, s.first_slot, 0, false};
  // The next batch, which is turned as number `place` of the ring.
  const auto fetch = [&](uint32_t place) {
    if (next.batch == 0) {
      uint32_t slot = next.slot + own;
      if (slot >= s.ring) slot -= s.ring;
      next.straight = s.is_straight(next.key + own, slot, kRows);
      next.row = s.row(next.key + own, slot) + (r0 - own) * s.row_bytes + in_row;
    }
    if (next.straight) {
#pragma unroll
      for (uint32_t i = 0; i < kBatch; ++i) {
        fetch_piece<kType>(ring.value_at(place, i), ring.scale_at(place, i), next.row, scale, true);
        next.row += kStep * s.row_bytes;
      }
    } else {
#pragma unroll 1
      for (uint32_t i = 0; i < kBatch; ++i) {
        const uint32_t r = r0 + (next.batch * kBatch + i) * kStep, key = next.key + r;
        const bool there = key >= s.from && key < s.to;
        const std::byte* row = there ? s.row(key, next.slot + r) : s.store;
        fetch_piece<kType>(ring.value_at(place, i), ring.scale_at(place, i), row + in_row, scale,
                           there);
      }
    }
    cp_async_commit();
    if (++next.batch == kBatches) {
      next.batch = 0;
      next.key += S::kKeys;
      next.slot += S::kKeys;
      while (next.slot >= s.ring) next.slot -= s.ring;
    }
  };
#pragma unroll 1
  for (uint32_t b = 0; b < kAhead; ++b) fetch(b);
  uint32_t place = 0;
  const uint32_t first = S::place(r0, d);
#pragma unroll 1
  for (uint32_t j = 0; j < n_tiles; ++j) {
    const uint32_t tile = tiles + j % 2 * S::kTileBytes;
    if (j >= 2) mbarrier_wait(bars.empty + 8 * (j % 2), (j / 2 - 1) % 2);
#pragma unroll 1
    for (uint32_t b = 0; b < kBatches; ++b) {
      cp_async_wait<static_cast<int>(kAhead) - 1>();
      const uint32_t at = tile + b * (kBatch * kStep * flash::kBlockRowBytes);
#pragma unroll
      for (uint32_t i = 0; i < kBatch; ++i) {
        uint32_t v[4];
        piece_f16<kType>(ring.value_at(place, i), ring.scale_at(place, i), upper, v);
        store_piece(at + (first ^ (i * kStep % 8 * 16)) + i * kStep * flash::kBlockRowBytes, v);
      }
      fetch(place);  // behind the end there are no rows
      place = (place + 1) % kAhead;
    }
    async_proxy_fence();
    meet<S>(named);
    if (thread == 0) spread_tile<S>(tile, rank, bars.full + 8 * (j % 2));
  }
}

}  // namespace sharpi::cuda::feed
