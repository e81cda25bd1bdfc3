// SPDX-License-Identifier: MIT
// Roundings and packings of 16 bits that rows of KV are made and multiplied with. Thread rule:
// device code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace sharpi::cuda {

__device__ __forceinline__ uint32_t bf16_bits(float f) {
  const uint32_t u = __float_as_uint(f);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return (u >> 16) | 0x40u;
  return (u + 0x7FFFu + (u >> 16 & 1u)) >> 16;
}

__device__ __forceinline__ uint16_t half_bits_of(float f) {
  if (f != f) return static_cast<uint16_t>((__float_as_uint(f) >> 16 & 0x8000u) | 0x7E00u);
  return __half_as_ushort(__float2half_rn(f));
}

/// The largest magnitude of the lanes' values, as bits.
__device__ __forceinline__ uint32_t largest_bits(float x) {
  return __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(x) & 0x7FFFFFFFu);
}

/// Two floats in one register, the first in the low half; f16 saturates.
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return reinterpret_cast<const uint32_t&>(v);
}
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t v;
  asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(hi), "f"(lo));
  return v;
}
__device__ __forceinline__ uint32_t pack_16(bool bf16, float lo, float hi) {
  return bf16 ? pack_bf16(lo, hi) : pack_f16(lo, hi);
}
__device__ __forceinline__ float2 unpack_16(bool bf16, uint32_t v) {
  if (bf16) return {__uint_as_float(v << 16), __uint_as_float(v & 0xFFFF0000u)};
  return __half22float2(reinterpret_cast<const __half2&>(v));
}
/// What rounding to 16 bits lost, as another pair.
__device__ __forceinline__ uint32_t pack_rest(bool bf16, float lo, float hi, uint32_t packed) {
  const float2 v = unpack_16(bf16, packed);
  return pack_16(bf16, lo - v.x, hi - v.y);
}

/// Two signed bytes' worth of f16 values: bytes 0,1 (or 2,3) of x, biased by 128 already.
__device__ __forceinline__ __half2 byte_pair(uint32_t biased, uint32_t select) {
  const uint32_t v = __byte_perm(biased, 0x64646464u, select);  // 1024 + byte
  return __hsub2(reinterpret_cast<const __half2&>(v), __float2half2_rn(1152.0f));
}

/// Scales above this would overflow f16 in 127 * scale.
constexpr float kMostScale = 515.0f;

}  // namespace sharpi::cuda
