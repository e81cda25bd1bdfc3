// SPDX-License-Identifier: MIT
// The asynchronous copies that fill a stage of a warp's ring (attention_ring_plan.h) with a tile of
// keys and values, for attention_ring.cu. Thread rule: device code.
#pragma once

#include "cuda/kernels/attention/attention_teams.cuh"

namespace sharpi::cuda::split {

constexpr int kTile = kSplitTile;
static_assert(kTile == kStreamTile && kScaleBytes == kStreamScales);

/// What offsets of pieces in a row of keys or values are xored with.
template <bool kValue>
__device__ __forceinline__ uint32_t swizzle_of(KvDtype type, uint32_t row) {
  uint32_t swizzle = 0;
  with_kv_codec(type, [&]<KvDtype kType>() {
    using Codec = DeviceCodec<kType>;
    swizzle = kValue ? Codec::value_swizzle(row) : Codec::key_swizzle(row);
  });
  return swizzle;
}

/// kBytes of each of 16 rows that lie side by side, in pieces of 16 bytes; `from`: the first row.
template <KvDtype kType, uint32_t kBytes, bool kValue>
__device__ __forceinline__ void copy_whole(const std::byte* from, uint32_t row_bytes, uint8_t* to) {
  constexpr uint32_t kPieces = kBytes / 16, kAll = kTile * kPieces;
  constexpr uint32_t kPitch = (kBytes + 127) / 128 * 128;
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t into = shared_address(to);
#pragma unroll
  for (uint32_t i0 = 0; i0 < kAll; i0 += 32) {
    const uint32_t i = i0 + lane;
    // With 32 a multiple of the pieces the lane's column stays, and rows go up by a constant.
    constexpr bool kEven = 32 % kPieces == 0;
    const uint32_t r = kEven ? i0 / kPieces + lane / kPieces : i / kPieces;
    const uint32_t c = (kEven ? lane % kPieces : i % kPieces) * 16;
    if (kAll % 32 != 0 && i >= kAll) break;
    const uint32_t swizzle =
        kValue ? DeviceCodec<kType>::value_swizzle(r) : DeviceCodec<kType>::key_swizzle(r);
    cp_async_16(into + r * kPitch + (c ^ swizzle), from + r * row_bytes + c);
  }
}

/// kBytes of each of 16 rows; `row` is the lane's row address (lanes from `first_lane` on, null =
/// no such key, zeros), in pieces of 16 bytes.
template <uint32_t kBytes, bool kValue>
__device__ __forceinline__ void copy_rows(KvDtype type, uint64_t row, uint32_t pitch,
                                          const void* any, uint8_t* to) {
  constexpr uint32_t kPieces = kBytes / 16, kAll = kTile * kPieces;
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
  for (uint32_t i0 = 0; i0 < kAll; i0 += 32) {
    const uint32_t i = i0 + lane, r = min(i / kPieces, uint32_t{kTile - 1}), c = i % kPieces * 16;
    const uint64_t from = __shfl_sync(0xFFFFFFFFu, row, static_cast<int>(r + (kValue ? kTile : 0)));
    if (kAll % 32 != 0 && i >= kAll) break;
    const uint32_t swizzle = swizzle_of<kValue>(type, r);
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
#pragma unroll 1
  for (uint32_t r = 0; r < kTile; ++r) {
    const uint64_t from = __shfl_sync(0xFFFFFFFFu, row, static_cast<int>(r + (kValue ? kTile : 0)));
    const uint32_t swizzle = swizzle_of<kValue>(type, r);
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

/// The scales of the lane's row of a tile that is there: `at` is where they are.
template <int kSlice>
__device__ __forceinline__ void copy_scales_at(const std::byte* at, uint32_t e0, bool aligned,
                                               uint8_t* to) {
  if (kSlice == 128 && aligned) {
    cp_async_8(shared_address(to), at);
  } else if (kSlice == 64 && aligned) {
    cp_async_4(shared_address(to), at);
  } else {
    const uint32_t n = (e0 + kSlice - 1) / 32 - e0 / 32 + 1;
    for (uint32_t i = 0; i < n; ++i) {
      reinterpret_cast<uint16_t*>(to)[i] = reinterpret_cast<const volatile uint16_t*>(at)[i];
    }
  }
}

/// Bytes from element e0 of a row of n elements to the scale of its block.
__device__ __forceinline__ uint32_t to_scales(KvDtype type, uint32_t n, uint32_t e0) {
  return value_bytes(type, n) - value_bytes(type, e0) + e0 / 32 * 2;
}

/// The same of a row that may be absent (0); it starts at e0, `behind` bytes before its scales.
template <int kSlice>
__device__ __forceinline__ void copy_scales(uint64_t row, uint32_t e0, uint32_t behind,
                                            bool aligned, uint8_t* to) {
  if (row == 0) {
    *reinterpret_cast<uint2*>(to) = {0, 0};  // scale 0: an absent key is zero
    return;
  }
  copy_scales_at<kSlice>(reinterpret_cast<const std::byte*>(row + behind), e0, aligned, to);
}

/// What the copies of a block's tiles need. Map: KeyMap or HeadMap.
template <class Map>
struct RingSource {
  const KvLayer& l;
  const RowBlock& b;
  const Map& map;
  const Stage& stage;
  const void* any;                // any address that may be read
  uint32_t k_granule, v_granule;  // bytes that every piece of a row is aligned to: 16, 4 or 2
  uint32_t e0;                    // first element of the slice
};

/// A tile whose keys are all there, side by side in a block: the slice of the first one's rows.
__device__ __forceinline__ bool find_whole(const RingSource<KeyMap>& s, uint64_t key,
                                           const std::byte** k, const std::byte** v) {
  const KvLayer& l = s.l;
  if (key < s.b.begin || key + kTile > s.b.end || s.k_granule != 16 || s.v_granule != 16) {
    return false;
  }
  auto slot = static_cast<uint32_t>(key);
  if (l.window != 0) {
    if (s.map.group.ring_slots % kTile != 0 || key + kTile > s.map.position) return false;
    slot %= s.map.group.ring_slots;
  }
  const uint32_t in = slot % kKvBlockSlots;
  const std::byte* block = s.map.group.base + uint64_t{slot / kKvBlockSlots} * l.block_stride;
  *k = block + (l.k_offset + in * l.k_row_bytes + value_bytes(l.k_dtype, s.e0));
  *v = block + (l.v_offset + in * l.v_row_bytes + value_bytes(l.v_dtype, s.e0));
  return true;
}
/// The same of a head whose rows may be in blocks of one head: no window, and tiles do not reach
/// from block to block.
__device__ __forceinline__ bool find_whole(const RingSource<HeadMap>& s, uint64_t key,
                                           const std::byte** k, const std::byte** v) {
  const KvLayer& l = s.l;
  if (key < s.b.begin || key + kTile > s.b.end || s.k_granule != 16 || s.v_granule != 16) {
    return false;
  }
  *k = row_at(l, s.map, key, false) + value_bytes(l.k_dtype, s.e0);
  *v = row_at(l, s.map, key, true) + value_bytes(l.v_dtype, s.e0);
  return true;
}

template <KvDtype kKnown, int kSlice, bool kValue>
__device__ __forceinline__ void copy_whole_of(KvDtype type, const std::byte* from,
                                              uint32_t row_bytes, uint8_t* to) {
  with_codec<kKnown>(type, [&]<KvDtype kType>() {
    copy_whole<kType, value_bytes(kType, kSlice), kValue>(from, row_bytes, to);
  });
}

/// The lane's copies of rows of a tile of which some are absent.
template <KvDtype kKnown, int kSlice, bool kValue>
__device__ __forceinline__ void copy_some_of(KvDtype type, uint64_t row, uint32_t granule,
                                             const void* any, uint32_t pitch, uint8_t* to) {
  constexpr bool kPlain = is_kv_codec(kKnown) && !has_scales(kKnown);
  if (!kPlain && granule != 16) {
    return copy_rows_slow<kValue>(type, row, value_bytes(type, kSlice), pitch, granule, to);
  }
  with_codec<kKnown>(type, [&]<KvDtype kType>() {
    copy_rows<value_bytes(kType, kSlice), kValue>(kType, row, pitch, any, to);
  });
}

/// Starts the copy of tile `tile` into a stage; one commit group, also when there is no such tile.
template <KvDtype kKnown, int kSlice, class Map>
__device__ __forceinline__ void fetch(const RingSource<Map>& s, uint64_t tile, bool exists,
                                      uint8_t* stage) {
  if (exists) {
    const KvLayer& l = s.l;
    const uint32_t lane = threadIdx.x % 32, n = row_elements(l, s.map, l.head_dim);
    const bool value = lane >= kTile;
    constexpr bool kPlain = is_kv_codec(kKnown) && !has_scales(kKnown);
    const KvDtype type = value ? l.v_dtype : l.k_dtype;
    const bool scaled = !kPlain && has_scales(type);
    const uint32_t row_bytes = bytes_of_row(l, s.map, value);
    uint8_t* scales =
        stage + (value ? s.stage.v_scale : s.stage.k_scale) + lane % kTile * kScaleBytes;
    const std::byte *k, *v;
    if (find_whole(s, tile * kTile, &k, &v)) {
      copy_whole_of<kKnown, kSlice, false>(l.k_dtype, k, bytes_of_row(l, s.map, false), stage);
      copy_whole_of<kKnown, kSlice, true>(l.v_dtype, v, bytes_of_row(l, s.map, true),
                                          stage + s.stage.v);
      if (scaled) {
        const std::byte* at = (value ? v : k) + lane % kTile * row_bytes;
        copy_scales_at<kSlice>(at + to_scales(type, n, s.e0), s.e0, row_bytes % 8 == 0, scales);
      }
    } else {
      const uint64_t key = tile * kTile + lane % kTile;
      uint64_t row = 0;
      if (key >= s.b.begin && key < s.b.end) {
        row = reinterpret_cast<uintptr_t>(row_at(l, s.map, key, value)) + value_bytes(type, s.e0);
      }
      copy_some_of<kKnown, kSlice, false>(l.k_dtype, row, s.k_granule, s.any, s.stage.k_pitch,
                                          stage);
      copy_some_of<kKnown, kSlice, true>(l.v_dtype, row, s.v_granule, s.any, s.stage.v_pitch,
                                         stage + s.stage.v);
      if (scaled) {
        copy_scales<kSlice>(row, s.e0, to_scales(type, n, s.e0), row_bytes % 8 == 0, scales);
      }
    }
  }
  cp_async_commit();
}

/// Until all copies but the last n_stages - 1 groups have arrived.
__device__ __forceinline__ void wait_for_oldest(uint32_t n_stages) {
  switch (n_stages) {
    case 1:
      return cp_async_wait<0>();
    case 2:
      return cp_async_wait<1>();
    case 3:
      return cp_async_wait<2>();
    default:
      return cp_async_wait<3>();
  }
}

}  // namespace sharpi::cuda::split
