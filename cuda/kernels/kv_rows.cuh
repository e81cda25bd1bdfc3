// SPDX-License-Identifier: MIT
// Stored rows on the device: where a row lies, how a codec encodes a row and loads eight elements.
// The loads and encode_row are the only places that know a codec's bytes; they equal kv/codec.cc
// bit for bit.
// Thread rule: device code.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/kernels/batch.h"

namespace sharpi::cuda {

__device__ __forceinline__ std::byte* store_row(const KvLayer& l, const BatchGroup& g,
                                                uint64_t slot, bool value) {
  return g.base + slot / kKvBlockSlots * l.block_stride + (value ? l.v_offset : l.k_offset) +
         slot % kKvBlockSlots * (value ? l.v_row_bytes : l.k_row_bytes);
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

/// Copies `bytes` (0 or 8) and fills the rest of the 8 with zeros.
__device__ __forceinline__ void cp_async_8_zfill(uint32_t to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}

// --- codecs ---

__device__ __forceinline__ uint32_t bf16_bits(float f) {
  const uint32_t u = __float_as_uint(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (u >> 16) | 0x40u;
  return (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
}
__device__ __forceinline__ float q8_scale(const std::byte* row, uint32_t n_elements, uint32_t e) {
  return __half2float(*reinterpret_cast<const __half*>(row + n_elements + e / 32 * 2));
}

/// Eight bytes of q8_0 values; rows of odd multiples of 32 elements are aligned to 2 only.
__device__ __forceinline__ uint2 load_q8_bytes(const std::byte* at) {
  if (reinterpret_cast<uintptr_t>(at) % 8 == 0) return *reinterpret_cast<const uint2*>(at);
  const auto* h = reinterpret_cast<const uint16_t*>(at);
  return {h[0] | uint32_t{h[1]} << 16, h[2] | uint32_t{h[3]} << 16};
}

/// v = elements [e, e + 8) of a stored row of n_elements; e is a multiple of 8.
__device__ __forceinline__ void load_elements(KvDtype type, const std::byte* row,
                                              uint32_t n_elements, uint32_t e, float (&v)[8]) {
  if (type == KvDtype::kF32) {
    const auto* p = reinterpret_cast<const float4*>(row) + e / 4;
    const float4 a = p[0], b = p[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  } else if (type == KvDtype::kBf16) {
    const uint4 a = reinterpret_cast<const uint4*>(row)[e / 8];
    const uint32_t w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(w[i] << 16);
      v[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
    }
  } else {
    const uint2 a = load_q8_bytes(row + e);
    const float d = q8_scale(row, n_elements, e);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t w = i < 4 ? a.x : a.y;
      v[i] = __fmul_rn(d, static_cast<float>(static_cast<int8_t>(w >> (8 * (i % 4)))));
    }
  }
}

__device__ __forceinline__ uint16_t half_bits_of(float f) {
  if (f != f) return static_cast<uint16_t>((__float_as_uint(f) >> 16 & 0x8000u) | 0x7E00u);
  return __half_as_ushort(__float2half_rn(f));
}

/// A q8_0 block whose largest magnitude has these bits: its scale, and what its values are times.
struct Q8Scale {
  uint16_t bits;
  float inverse;
};
__device__ __forceinline__ Q8Scale q8_scale_of(uint32_t top) {
  const float d = __fdiv_rn(__uint_as_float(top), 127.0f);
  return {half_bits_of(d), d < 1e-30f ? 0.0f : __fdiv_rn(1.0f, d)};
}
/// The largest magnitude of the lanes' values, as bits.
__device__ __forceinline__ uint32_t q8_top(float x) {
  return __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(x) & 0x7FFFFFFFu);
}
__device__ __forceinline__ int8_t q8_code(float x, float inverse) {
  float v = __fmul_rn(x, inverse);
  v = v > -127.0f ? v : -127.0f;
  v = v < 127.0f ? v : 127.0f;
  return static_cast<int8_t>(__float2int_rn(v));
}

/// Encodes n floats in shared memory to a stored row, or to two (`twin` may be null); q8_0: a
/// multiple of 32. All threads of the block take part.
__device__ __forceinline__ void encode_row(KvDtype type, const float* x, uint32_t n, std::byte* row,
                                           std::byte* twin) {
  std::byte *scales = row + n, *twin_scales = twin != nullptr ? twin + n : nullptr;
  if (type == KvDtype::kQ8_0) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t b = threadIdx.x / 32; b < n / 32; b += blockDim.x / 32) {
      const float v = x[b * 32 + lane];
      const Q8Scale scale = q8_scale_of(q8_top(v));
      const int8_t q = q8_code(v, scale.inverse);
      reinterpret_cast<int8_t*>(row)[b * 32 + lane] = q;
      if (lane == 0) reinterpret_cast<uint16_t*>(scales)[b] = scale.bits;
      if (twin == nullptr) continue;
      reinterpret_cast<int8_t*>(twin)[b * 32 + lane] = q;
      if (lane == 0) reinterpret_cast<uint16_t*>(twin_scales)[b] = scale.bits;
    }
    return;
  }
  for (uint32_t i = threadIdx.x * 2; i < n; i += blockDim.x * 2) {
    if (type == KvDtype::kF32) {
      const float2 v = {x[i], x[i + 1]};
      *reinterpret_cast<float2*>(row + i * 4) = v;
      if (twin != nullptr) *reinterpret_cast<float2*>(twin + i * 4) = v;
    } else {
      const uint32_t v = bf16_bits(x[i]) | bf16_bits(x[i + 1]) << 16;
      *reinterpret_cast<uint32_t*>(row + i * 2) = v;
      if (twin != nullptr) *reinterpret_cast<uint32_t*>(twin + i * 2) = v;
    }
  }
}

}  // namespace sharpi::cuda
