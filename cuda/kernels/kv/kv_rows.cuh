// SPDX-License-Identifier: MIT
// Stored rows on the device: where a row lies, and its elements whatever its codec
// (kv_codecs.cuh).
// Thread rule: device code.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/attention/attention_shapes.h"
#include "cuda/kernels/batch.h"
#include "cuda/kernels/kv/kv_codecs.cuh"

namespace sharpi::cuda {

__device__ __forceinline__ std::byte* store_row(const KvLayer& l, const BatchGroup& g,
                                                uint64_t slot, bool value) {
  return g.base + slot / kKvBlockSlots * l.block_stride + (value ? l.v_offset : l.k_offset) +
         slot % kKvBlockSlots * (value ? l.v_row_bytes : l.k_row_bytes);
}
/// Rows of a KV head that are in blocks of one head; nullptr: they are with those of the others.
__device__ __forceinline__ const KvHeadRows* head_rows(const BatchGroup& g, uint32_t head) {
  return g.ring_slots == kRowsByHead ? reinterpret_cast<const KvHeadRows*>(g.base) + head : nullptr;
}
__device__ __forceinline__ std::byte* head_row(const KvLayer& l, const KvHeadRows& rows,
                                               uint64_t slot, bool value) {
  return rows.base + rows.blocks[slot / kKvBlockSlots] + (value ? rows.v_offset : 0) +
         slot % kKvBlockSlots * ((value ? l.v_row_bytes : l.k_row_bytes) / l.n_heads);
}
__device__ __forceinline__ std::byte* chunk_row(const KvLayer& l, uint32_t chunk_block, uint32_t i,
                                                bool value) {
  const uint64_t block = uint64_t{kKvBlockSlots} * (l.k_row_bytes + l.v_row_bytes);
  return l.chunk + (chunk_block + i / kKvBlockSlots) * block +
         (value ? kKvBlockSlots * l.k_row_bytes : 0) +
         i % kKvBlockSlots * (value ? l.v_row_bytes : l.k_row_bytes);
}

/// Four (eight) bytes, asynchronously: part of the commit group of cp_async_16.
__device__ __forceinline__ void cp_async_4(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_8(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/// Copies `bytes` (0, or all of 4 or 8) and fills the rest with zeros.
__device__ __forceinline__ void cp_async_4_zfill(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void cp_async_8_zfill(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

/// v = elements [e, e + 8) of a stored row of n_elements; e is a multiple of 8.
__device__ __forceinline__ void load_elements(KvDtype type, const std::byte* row,
                                              uint32_t n_elements, uint32_t e, float (&v)[8]) {
  with_kv_codec(type, [&]<KvDtype kType>() { DeviceCodec<kType>::load(row, n_elements, e, v); });
}

/// Encodes n floats in shared memory to a stored row, or to two; a multiple of the codec's block.
/// All threads of the block take part.
__device__ __forceinline__ void encode_row(KvDtype type, const float* x, uint32_t n,
                                           const StoredTo& to) {
  if (has_scales(type)) {
    return with_kv_codec(
        type, [&]<KvDtype kType>() requires(has_scales(kType)) {
          DeviceCodec<kType>::encode(x, n, to);
        });
  }
  for (uint32_t i = threadIdx.x * 2; i < n; i += blockDim.x * 2) {
    with_kv_codec(
        type, [&]<KvDtype kType>() requires(!has_scales(kType)) {
          DeviceCodec<kType>::store_two(i, x + i, to);
        });
  }
}

}  // namespace sharpi::cuda
