// SPDX-License-Identifier: MIT
// Stored rows as operands of tensor cores, and their products: raw bytes of keys lie in shared
// memory, and eight elements at a time become four registers (kv_codecs.cuh).
// Thread rule: device code.
#pragma once

#include <cstdint>

#include "cuda/kernels/attention/attention_shapes.h"
#include "cuda/kernels/kv/kv_codecs.cuh"
#include "cuda/kernels/ptx.cuh"

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

/// The same registers as f16 for every codec (bf16 rows saturate): what prefill multiplies with.
template <KvDtype kType>
__device__ __forceinline__ void fragment_f16(const uint8_t* at, uint32_t flip, const uint8_t* scale,
                                             uint32_t (&r)[4]) {
  DeviceCodec<kType>::fragment(at, flip, scale, r);
  if constexpr (KvCodecTraits<kType>::kProduct == KvProduct::kBf16) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      r[i] = pack_f16(__uint_as_float(r[i] << 16), __uint_as_float(r[i] & 0xFFFF0000u));
    }
  }
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

}  // namespace sharpi::cuda
