// SPDX-License-Identifier: MIT
// Stored rows as operands of tensor cores: raw bytes of keys lie in shared memory, swizzled, and
// eight elements at a time become four registers of f16 (f32 and q8_0 rows) or bf16 (bf16 rows).
// fragment() is the one load function per codec of these kernels.
// Thread rule: device code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/kernels/attention_shapes.h"
#include "cuda/kernels/ptx.cuh"
#include "kv/codec.h"

namespace sharpi::cuda {

/// d += a (16x16) * b (16x8), f16 or bf16 operands.
__device__ __forceinline__ void mma_16(bool bf16, float (&d)[4], const uint32_t (&a)[4],
                                       uint32_t b0, uint32_t b1) {
  if (bf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
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

/// Registers of eight elements whose raw bytes start at `at` in shared memory (16-byte pieces of
/// the row may be swizzled: `at` points to the first piece, f32 rows find the second by `flip`).
__device__ __forceinline__ void fragment(KvDtype type, const uint8_t* at, uint32_t flip,
                                         const uint8_t* scale, uint32_t (&r)[4]) {
  if (type == KvDtype::kBf16) {
    const auto v = *reinterpret_cast<const uint4*>(at);
    r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
  } else if (type == KvDtype::kF32) {
    const auto a = *reinterpret_cast<const float4*>(at);
    const auto b = *reinterpret_cast<const float4*>(
        reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(at) ^ flip));
    r[0] = pack_f16(a.x, a.y), r[1] = pack_f16(a.z, a.w);
    r[2] = pack_f16(b.x, b.y), r[3] = pack_f16(b.z, b.w);
  } else {
    const auto v = *reinterpret_cast<const uint2*>(at);
    const __half s = __hmin(*reinterpret_cast<const __half*>(scale), __float2half(kMostScale));
    const __half2 d = __halves2half2(s, s);
    const uint32_t lo = v.x ^ 0x80808080u, hi = v.y ^ 0x80808080u;
    const __half2 w[4] = {__hmul2(byte_pair(lo, 0x4140u), d), __hmul2(byte_pair(lo, 0x4342u), d),
                          __hmul2(byte_pair(hi, 0x4140u), d), __hmul2(byte_pair(hi, 0x4342u), d)};
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = reinterpret_cast<const uint32_t&>(w[i]);
  }
}

/// The same as f16 for every codec (bf16 rows saturate): what prefill multiplies with.
__device__ __forceinline__ void fragment_f16(KvDtype type, const uint8_t* at, uint32_t flip,
                                             const uint8_t* scale, uint32_t (&r)[4]) {
  fragment(type, at, flip, scale, r);
  if (type != KvDtype::kBf16) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    r[i] = pack_f16(__uint_as_float(r[i] << 16), __uint_as_float(r[i] & 0xFFFF0000u));
  }
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// Byte offsets of 16-byte pieces are xored with this, so that a warp's fragment loads of keys
/// (eight rows by four columns of lanes: n = 8) or of values (rows 2t, columns g) hit all banks.
__device__ __forceinline__ uint32_t key_swizzle(KvDtype type, uint32_t row) {
  if (type == KvDtype::kQ8_0) return (row & 3u) << 5;
  return type == KvDtype::kBf16 ? (row & 1u) << 6 : (row & 1u) << 4;
}
__device__ __forceinline__ uint32_t value_swizzle(KvDtype type, uint32_t row) {
  if (type == KvDtype::kF32) return (row >> 1 & 1u) << 4 | (row >> 2 & 1u) << 6;
  return (row >> 1 & 3u) << 5;
}

}  // namespace sharpi::cuda
