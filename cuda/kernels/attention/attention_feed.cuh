// SPDX-License-Identifier: MIT
// What feeds attention's consumers with tiles of f16: warps that read stored rows of keys or of
// values, turn them into f16 and write them where the products read. Many rows are on their way at
// a time, by asynchronous copies to a ring of pieces that each thread has in shared memory. Thread
// rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_common.cuh"
#include "cuda/kernels/kv/kv_fragments.cuh"

namespace sharpi::cuda::feed {

/// A piece: eight elements of a stored row as they lie there, and the word with the scale of their
/// block. A thread's ring of pieces in shared memory, which nobody else reads or writes: piece p of
/// the ring lies kFeeders pieces behind piece p - 1.
template <class S, KvDtype kType>
struct Ring {
  static constexpr uint32_t kValues = value_bytes(kType, 8);  // bytes of a piece
  static constexpr uint32_t kBytes = kValues + (has_scales(kType) ? 4 : 0);
  static constexpr uint32_t kBatch = kType == KvDtype::kF32 ? 2 : 4;  // pieces that go together
  static constexpr uint32_t kFit = S::kRingBytes / S::kFeeders / kBytes / kBatch;
  static constexpr uint32_t kBatches = kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
  static constexpr uint32_t kPieces = kBatches * kBatch;
  uint32_t values, scales;  // of the thread's piece 0
  __device__ __forceinline__ Ring(uint32_t at, uint32_t thread)
      : values(at + thread * kValues), scales(at + kPieces * S::kFeeders * kValues + thread * 4) {}
  __device__ __forceinline__ uint32_t value_at(uint32_t p) const {
    return values + p * S::kFeeders * kValues;
  }
  __device__ __forceinline__ uint32_t scale_at(uint32_t p) const {
    return scales + p * S::kFeeders * 4;
  }
};

__device__ __forceinline__ void store_word(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ uint32_t load_word(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}

/// Sends piece p on its way; one that is not there is zeros. granule: what rows are aligned to;
/// rows aligned to 2 are read at once.
template <class S, KvDtype kType>
__device__ __forceinline__ void fetch_piece(const Ring<S, kType>& ring, uint32_t p,
                                            const std::byte* at, const std::byte* scale, bool there,
                                            uint32_t granule) {
  constexpr uint32_t kValues = Ring<S, kType>::kValues;
  const uint32_t to = ring.value_at(p);
  if constexpr (has_scales(kType)) {
    if (granule < 16) {
      const auto word = [&](const std::byte* from) {
        const auto* half = reinterpret_cast<const uint16_t*>(from);
        return there ? __ldg(half) | uint32_t{__ldg(half + 1)} << 16 : 0;
      };
#pragma unroll
      for (uint32_t i = 0; i < kValues; i += 4) store_word(to + i, word(at + i));
      const uint32_t half = there ? __ldg(reinterpret_cast<const uint16_t*>(scale)) : 0;
      store_word(ring.scale_at(p), half | half << 16);
      return;
    }
    const auto whole = reinterpret_cast<uintptr_t>(scale) & ~uintptr_t{3};
    cp_async_4_zfill(ring.scale_at(p), reinterpret_cast<const std::byte*>(whole), there ? 4 : 0);
  }
  if constexpr (kValues == 4) {
    cp_async_4_zfill(to, at, there ? 4 : 0);
  } else if constexpr (kValues == 8) {
    cp_async_8_zfill(to, at, there ? 8 : 0);
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kValues; i += 16) {
      cp_async_16_zfill(to + i, at + i, there ? 16 : 0);
    }
  }
}

/// Piece p as f16; upper: its scale is the word's upper half.
template <class S, KvDtype kType>
__device__ __forceinline__ uint4 piece_f16(const Ring<S, kType>& ring, uint32_t p, bool upper) {
  constexpr uint32_t kValues = Ring<S, kType>::kValues;
  alignas(16) uint32_t words[kValues / 4];
  const uint32_t at = ring.value_at(p);
  if constexpr (kValues == 4) {
    words[0] = load_word(at);
  } else if constexpr (kValues == 8) {
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(at)
                 : "memory");
  } else {
#pragma unroll
    for (uint32_t i = 0; i < kValues / 4; i += 4) {
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[i]), "=r"(words[i + 1]), "=r"(words[i + 2]), "=r"(words[i + 3])
                   : "r"(at + 4 * i)
                   : "memory");
    }
  }
  uint32_t r[4];
  if constexpr (kValues == 32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      r[i] = pack_f16(__uint_as_float(words[2 * i]), __uint_as_float(words[2 * i + 1]));
    }
  } else {
    __half scale = __ushort_as_half(0);
    if constexpr (has_scales(kType)) {
      const uint32_t both = load_word(ring.scale_at(p));
      scale = __ushort_as_half(static_cast<uint16_t>(upper ? both >> 16 : both));
    }
    fragment_f16<kType>(reinterpret_cast<const uint8_t*>(words), 0,
                        reinterpret_cast<const uint8_t*>(&scale), r);
  }
  return {r[0], r[1], r[2], r[3]};
}

/// Where the keys' or the values' rows of a sequence lie: slots of blocks in its store, which may
/// be a ring, and from key number `chunk_from` on in the scratch of its call. Keys are counted from
/// the first that the block sees.
struct Source {
  const std::byte *store, *chunk;
  uint32_t store_stride, chunk_stride;  // of a block of slots
  uint32_t row_bytes, granule;          // of a row; what rows are aligned to
  uint32_t n_elements;                  // of a row
  uint32_t n_keys;
  int32_t chunk_from;
  uint32_t first_slot, ring;  // of key 0; slots of the ring, or none
};

__device__ __forceinline__ Source make_source(const AttentionArgs& a, const RowBlock& b, bool value,
                                              uint32_t granule) {
  const KvLayer& l = a.p.kv;
  const KeyMap map = make_key_map(a, b.sequence);
  Source s;
  s.store = store_row(l, map.group, 0, value);
  s.chunk = l.window != 0 ? chunk_row(l, map.chunk_block, 0, value) : nullptr;
  s.store_stride = static_cast<uint32_t>(l.block_stride);
  s.chunk_stride = kKvBlockSlots * (l.k_row_bytes + l.v_row_bytes);
  s.row_bytes = value ? l.v_row_bytes : l.k_row_bytes;
  s.granule = granule;
  s.n_elements = l.n_heads * l.head_dim;
  s.n_keys = static_cast<uint32_t>(b.end - b.begin);
  s.ring = l.window != 0 ? map.group.ring_slots : ~0u;
  s.chunk_from = l.window != 0 ? static_cast<int32_t>(map.position - b.begin) : INT32_MAX;
  s.first_slot = static_cast<uint32_t>(b.begin) % s.ring;
  return s;
}

/// All tiles of a block, by S::kFeeders threads of which this is number `thread`. Tile j goes to
/// tiles + j % 2 * S::kTileBytes once `empty` + 8 * (j % 2) says that nobody reads it, and `full`
/// is told. A batch of pieces is turned while the next ones are on their way to `ring_bytes`.
template <class S, KvDtype kType>
__device__ __forceinline__ void feed_tiles(const Source& s, uint32_t e0, uint32_t thread,
                                           uint32_t n_tiles, uint8_t* tiles, uint32_t ring_bytes,
                                           uint32_t full, uint32_t empty) {
  using R = Ring<S, kType>;
  constexpr uint32_t kPerRow = S::kDim / 8, kStep = S::kFeeders / kPerRow;      // rows of one pass
  constexpr uint32_t kBatch = R::kBatch, kBatches = S::kKeys / kStep / kBatch;  // of a tile
  constexpr uint32_t kAhead = R::kBatches < kBatches ? R::kBatches : kBatches;
  static_assert(S::kFeeders % kPerRow == 0 && kBatches % kAhead == 0);
  const R ring(ring_bytes, thread);
  const uint32_t r0 = thread / kPerRow, d = thread % kPerRow * 8;
  const uint32_t in_row = value_bytes(kType, e0 + d);
  const uint32_t scale_in_row = value_bytes(kType, s.n_elements) + (e0 + d) / 32 * 2;
  const bool upper = (scale_in_row & 2) != 0;
  // Key number `key` + r of a tile whose key `key` has slot `slot`.
  const auto fetch = [&](uint32_t key, uint32_t slot, uint32_t batch) {
#pragma unroll
    for (uint32_t i = 0; i < kBatch; ++i) {
      const uint32_t r = r0 + (batch * kBatch + i) * kStep;
      const bool in_chunk = static_cast<int32_t>(key + r) >= s.chunk_from;
      uint32_t at = slot + r;
      while (at >= s.ring) at -= s.ring;
      if (in_chunk) at = key + r - static_cast<uint32_t>(s.chunk_from);
      const bool there = key + r < s.n_keys;
      if (!there) at = 0;
      const std::byte* row =
          (in_chunk ? s.chunk : s.store) +
          uint64_t{at / kKvBlockSlots} * (in_chunk ? s.chunk_stride : s.store_stride) +
          at % kKvBlockSlots * s.row_bytes;
      fetch_piece(ring, batch % kAhead * kBatch + i, row + in_row, row + scale_in_row, there,
                  s.granule);
    }
    cp_async_commit();
  };
  uint32_t slot = s.first_slot;
#pragma unroll
  for (uint32_t b = 0; b < kAhead; ++b) fetch(0, slot, b);
#pragma unroll 1
  for (uint32_t j = 0; j < n_tiles; ++j) {
    const uint32_t key = j * S::kKeys, next_slot = (slot + S::kKeys) % s.ring;
    uint8_t* tile = tiles + j % 2 * S::kTileBytes;
    if (j >= 2) mbarrier_wait(empty + 8 * (j % 2), (j / 2 - 1) % 2);
#pragma unroll
    for (uint32_t b = 0; b < kBatches; ++b) {
      cp_async_wait<static_cast<int>(kAhead) - 1>();
#pragma unroll
      for (uint32_t i = 0; i < kBatch; ++i) {
        *reinterpret_cast<uint4*>(tile + S::place(r0 + (b * kBatch + i) * kStep, d)) =
            piece_f16(ring, b % kAhead * kBatch + i, upper);
      }
      const uint32_t ahead = b + kAhead;
      if (ahead < kBatches) {
        fetch(key, slot, ahead);
      } else {  // of the next tile; behind the end there are no rows
        fetch(key + S::kKeys, next_slot, ahead - kBatches);
      }
    }
    async_proxy_fence();
    mbarrier_arrive(full + 8 * (j % 2));
    slot = next_slot;
  }
}

}  // namespace sharpi::cuda::feed
