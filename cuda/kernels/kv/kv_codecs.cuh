// SPDX-License-Identifier: MIT
// The KV codecs on the device: all that kernels do with a codec's bytes stands here, a
// specialisation of DeviceCodec for each, and equals kv/codec.cc bit for bit. Thread rule: device
// code.
//   load        elements [e, e + 8) of a stored row of n as f32; e: a multiple of 8
//   store_one, store_two, store_four   elements from e on (fours: e / 4), of codecs of one plane
// and of codecs with scales, whose blocks have to be seen as a whole:
//   encode      n floats in shared memory to a stored row. Whole block
//   store_head  a head in a warp's registers, element lane + 32 i in x[i], to the row from element
//               `at` on. Whole warp
//   store_fours the same for heads of 128 and more: 128 i + 4 lane + j in x[4 i + j]
// and of all:
//   fragment    eight elements in shared memory to four registers of f16, bf16 if kProduct says so;
//               f32 rows find their second piece of 16 bytes by `flip`
//   swizzles    pieces of 16 bytes in shared memory are xored with this, so that a warp's loads of
//               keys (eight rows by four columns of lanes) or of values (rows 2t, columns g) hit
//               all banks
//   kStep       whether attention_step.cu has a form for K and V in this codec; kStepCodecs has it
//               then, and may pair it with others
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/kernels/kv/kv_numbers.cuh"
#include "cuda/kernels/kv/kv_q4.cuh"
#include "kv/codec_traits.h"

namespace sharpi::cuda {

/// Where a row goes, and its twin in the ring or null.
struct StoredTo {
  std::byte *row, *twin;
};
template <class T>
__device__ __forceinline__ void store_both(const StoredTo& to, uint32_t at, T v) {
  reinterpret_cast<T*>(to.row)[at] = v;
  if (to.twin != nullptr) reinterpret_cast<T*>(to.twin)[at] = v;
}

template <KvDtype kType>
struct DeviceCodec;

template <>
struct DeviceCodec<KvDtype::kF32> {
  static constexpr bool kStep = false;

  static __device__ __forceinline__ void load(const std::byte* row, uint32_t, uint32_t e,
                                              float (&v)[8]) {
    const auto* p = reinterpret_cast<const float4*>(row) + e / 4;
    const float4 a = p[0], b = p[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
  }
  static __device__ __forceinline__ void store_one(uint32_t e, float x, const StoredTo& to) {
    store_both(to, e, x);
  }
  static __device__ __forceinline__ void store_two(uint32_t e, const float* x, const StoredTo& to) {
    store_both(to, e / 2, float2{x[0], x[1]});
  }
  static __device__ __forceinline__ void store_four(uint32_t fours, const float* x,
                                                    const StoredTo& to) {
    store_both(to, fours, float4{x[0], x[1], x[2], x[3]});
  }
  static __device__ __forceinline__ void fragment(const uint8_t* at, uint32_t flip, const uint8_t*,
                                                  uint32_t (&r)[4]) {
    const auto a = *reinterpret_cast<const float4*>(at);
    const auto b = *reinterpret_cast<const float4*>(
        reinterpret_cast<const uint8_t*>(reinterpret_cast<uintptr_t>(at) ^ flip));
    r[0] = pack_f16(a.x, a.y), r[1] = pack_f16(a.z, a.w);
    r[2] = pack_f16(b.x, b.y), r[3] = pack_f16(b.z, b.w);
  }
  static __device__ __forceinline__ uint32_t key_swizzle(uint32_t row) { return (row & 1u) << 4; }
  static __device__ __forceinline__ uint32_t value_swizzle(uint32_t row) {
    return (row >> 1 & 1u) << 4 | (row >> 2 & 1u) << 6;
  }
};

template <>
struct DeviceCodec<KvDtype::kBf16> {
  static constexpr bool kStep = true;

  static __device__ __forceinline__ void load(const std::byte* row, uint32_t, uint32_t e,
                                              float (&v)[8]) {
    const uint4 a = reinterpret_cast<const uint4*>(row)[e / 8];
    const uint32_t w[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[2 * i] = __uint_as_float(w[i] << 16);
      v[2 * i + 1] = __uint_as_float(w[i] & 0xFFFF0000u);
    }
  }
  static __device__ __forceinline__ void store_one(uint32_t e, float x, const StoredTo& to) {
    store_both(to, e, static_cast<uint16_t>(bf16_bits(x)));
  }
  static __device__ __forceinline__ void store_two(uint32_t e, const float* x, const StoredTo& to) {
    store_both(to, e / 2, bf16_bits(x[0]) | bf16_bits(x[1]) << 16);
  }
  static __device__ __forceinline__ void store_four(uint32_t fours, const float* x,
                                                    const StoredTo& to) {
    store_both(
        to, fours,
        uint2{bf16_bits(x[0]) | bf16_bits(x[1]) << 16, bf16_bits(x[2]) | bf16_bits(x[3]) << 16});
  }
  static __device__ __forceinline__ void fragment(const uint8_t* at, uint32_t, const uint8_t*,
                                                  uint32_t (&r)[4]) {
    const auto v = *reinterpret_cast<const uint4*>(at);
    r[0] = v.x, r[1] = v.y, r[2] = v.z, r[3] = v.w;
  }
  static __device__ __forceinline__ uint32_t key_swizzle(uint32_t row) {
    return (row & 1u) << 6;
  }
  static __device__ __forceinline__ uint32_t value_swizzle(uint32_t row) {
    return (row >> 1 & 3u) << 5;
  }
};

template <>
struct DeviceCodec<KvDtype::kQ8_0> {
  static constexpr bool kStep = true;

  /// A block whose largest magnitude has these bits: its scale, and what its values are times.
  struct Scale {
    uint16_t bits;
    float inverse;
  };
  static __device__ __forceinline__ Scale scale_of(uint32_t top) {
    const float d = __fdiv_rn(__uint_as_float(top), 127.0f);
    return {half_bits_of(d), d < 1e-30f ? 0.0f : __fdiv_rn(1.0f, d)};
  }
  static __device__ __forceinline__ int8_t code(float x, float inverse) {
    float v = __fmul_rn(x, inverse);
    v = v > -127.0f ? v : -127.0f;
    v = v < 127.0f ? v : 127.0f;
    return static_cast<int8_t>(__float2int_rn(v));
  }
  /// Eight values; rows of odd multiples of 32 elements are aligned to 2 only.
  static __device__ __forceinline__ uint2 load_codes(const std::byte* at) {
    if (reinterpret_cast<uintptr_t>(at) % 8 == 0) return *reinterpret_cast<const uint2*>(at);
    const auto* h = reinterpret_cast<const uint16_t*>(at);
    return {h[0] | uint32_t{h[1]} << 16, h[2] | uint32_t{h[3]} << 16};
  }

  static __device__ __forceinline__ void load(const std::byte* row, uint32_t n, uint32_t e,
                                              float (&v)[8]) {
    const uint2 a = load_codes(row + e);
    const float d = __half2float(*reinterpret_cast<const __half*>(row + n + e / 32 * 2));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t w = i < 4 ? a.x : a.y;
      v[i] = __fmul_rn(d, static_cast<float>(static_cast<int8_t>(w >> (8 * (i % 4)))));
    }
  }
  static __device__ __forceinline__ void encode(const float* x, uint32_t n, const StoredTo& to) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t b = threadIdx.x / 32; b < n / 32; b += blockDim.x / 32) {
      const float v = x[b * 32 + lane];
      const Scale scale = scale_of(largest_bits(v));
      const int8_t q = code(v, scale.inverse);
      reinterpret_cast<int8_t*>(to.row)[b * 32 + lane] = q;
      if (lane == 0) reinterpret_cast<uint16_t*>(to.row + n)[b] = scale.bits;
      if (to.twin == nullptr) continue;
      reinterpret_cast<int8_t*>(to.twin)[b * 32 + lane] = q;
      if (lane == 0) reinterpret_cast<uint16_t*>(to.twin + n)[b] = scale.bits;
    }
  }
  /// The scales of the head's blocks are found side by side, one per lane: divisions take long.
  template <int kPer>
  static __device__ __forceinline__ void store_head(uint32_t at, uint32_t n, const float (&x)[kPer],
                                                    const StoredTo& to) {
    const uint32_t lane = threadIdx.x % 32;
    uint32_t top = 0;
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      const uint32_t of = largest_bits(x[i]);
      if (lane == i) top = of;
    }
    const Scale scale = scale_of(top);
    if (lane < kPer) store_both(to, n / 2 + at / 32 + lane, scale.bits);
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      const float inverse = __shfl_sync(0xFFFFFFFFu, scale.inverse, static_cast<int>(i));
      store_both(to, at + lane + 32 * i, code(x[i], inverse));
    }
  }
  /// Of eight lanes that have a block of 32 each finds the scale of another one's, for divisions
  /// take long.
  template <int kPer>
  static __device__ __forceinline__ void store_fours(uint32_t at, uint32_t n,
                                                     const float (&x)[kPer], const StoredTo& to) {
    constexpr uint32_t kGroups = kPer / 4;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t top = 0;  // of block 4 * (lane % 8) + lane / 8
#pragma unroll
    for (uint32_t i = 0; i < kGroups; ++i) {
      uint32_t most = 0;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        most = max(most, __float_as_uint(x[4 * i + j]) & 0x7FFFFFFFu);
      }
#pragma unroll
      for (int d = 1; d < 8; d *= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, d));
      if (kGroups == 1 || lane % 8 == i) top = most;
    }
    const Scale scale = scale_of(top);
    if (lane % 8 < kGroups) {
      store_both(to, n / 2 + at / 32 + lane % 8 * 4 + lane / 8, scale.bits);
    }
#pragma unroll
    for (uint32_t i = 0; i < kGroups; ++i) {
      const float inverse =
          kGroups == 1 ? scale.inverse
                       : __shfl_sync(0xFFFFFFFFu, scale.inverse, static_cast<int>((lane & 24) + i));
      uint32_t codes = 0;
#pragma unroll
      for (uint32_t j = 0; j < 4; ++j) {
        codes |= uint32_t{static_cast<uint8_t>(code(x[4 * i + j], inverse))} << (8 * j);
      }
      store_both(to, at / 4 + 32 * i + lane, codes);
    }
  }
  static __device__ __forceinline__ void fragment(const uint8_t* at, uint32_t, const uint8_t* scale,
                                                  uint32_t (&r)[4]) {
    const auto v = *reinterpret_cast<const uint2*>(at);
    const __half s = __hmin(*reinterpret_cast<const __half*>(scale), __float2half(kMostScale));
    const __half2 d = __halves2half2(s, s);
    const uint32_t lo = v.x ^ 0x80808080u, hi = v.y ^ 0x80808080u;
    const __half2 w[4] = {__hmul2(byte_pair(lo, 0x4140u), d), __hmul2(byte_pair(lo, 0x4342u), d),
                          __hmul2(byte_pair(hi, 0x4140u), d), __hmul2(byte_pair(hi, 0x4342u), d)};
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = reinterpret_cast<const uint32_t&>(w[i]);
  }
  static __device__ __forceinline__ uint32_t key_swizzle(uint32_t row) {
    return (row & 3u) << 5;
  }
  static __device__ __forceinline__ uint32_t value_swizzle(uint32_t row) {
    return (row >> 1 & 3u) << 5;
  }
};

/// Rotated rows: who stores them rotates before, who loads has rotated queries.
template <>
struct DeviceCodec<KvDtype::kQ4> {
  static constexpr bool kStep = true;

  static __device__ __forceinline__ void load(const std::byte* row, uint32_t n, uint32_t e,
                                              float (&v)[8]) {
    const auto* h = reinterpret_cast<const uint16_t*>(row + e / 2);  // rows are aligned to 2 only
    const uint2 levels = levels_of(h[0] | uint32_t{h[1]} << 16);
    const float d = __half2float(*reinterpret_cast<const __half*>(row + n / 2 + e / 32 * 2));
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t w = i < 4 ? levels.x : levels.y;
      v[i] = __fmul_rn(d, static_cast<float>(static_cast<int8_t>(w >> (8 * (i % 4)))));
    }
  }
  static __device__ __forceinline__ void encode(const float* x, uint32_t n, const StoredTo& to) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t b = threadIdx.x / 32; b < n / 32; b += blockDim.x / 32) {
      const float v = x[b * 32 + lane];
      const Q4Blocks<1, 1> block(&v);
      store_block(b * 32, n, block.code[0], block.scale[0], to);
    }
  }
  /// A code in every lane: pairs of lanes share a byte.
  static __device__ __forceinline__ void store_block(uint32_t at, uint32_t n, uint32_t code,
                                                     uint16_t scale, const StoredTo& to) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, code, 1);
    if (lane % 2 == 0) store_both(to, (at + lane) / 2, static_cast<uint8_t>(code | other << 4));
    if (lane == 0) store_both(to, n / 4 + at / 32, scale);
  }
  template <int kPer>
  static __device__ __forceinline__ void store_head(uint32_t at, uint32_t n, const float (&x)[kPer],
                                                    const StoredTo& to) {
#pragma unroll
    for (uint32_t i = 0; i < kPer; ++i) {
      const Q4Blocks<1, 1> block(x + i);
      store_block(at + 32 * i, n, block.code[0], block.scale[0], to);
    }
  }
  template <int kPer>
  static __device__ __forceinline__ void store_fours(uint32_t at, uint32_t n,
                                                     const float (&x)[kPer], const StoredTo& to) {
    const uint32_t lane = threadIdx.x % 32;
    constexpr uint32_t kTogether = kPer == 4 ? 1 : 2;  // four would take too many registers
#pragma unroll
    for (uint32_t i0 = 0; i0 < kPer / 4; i0 += kTogether) {
      const Q4Blocks<4, kTogether> blocks(x + 4 * i0);
#pragma unroll
      for (uint32_t b = 0; b < kTogether; ++b) {
        const uint32_t i = i0 + b, *code = blocks.code + 4 * b;
        const uint32_t codes = code[0] | code[1] << 4 | code[2] << 8 | code[3] << 12;
        store_both(to, at / 4 + 32 * i + lane, static_cast<uint16_t>(codes));
        if (lane % 8 == 0) store_both(to, n / 4 + at / 32 + 4 * i + lane / 8, blocks.scale[b]);
      }
    }
  }
  static __device__ __forceinline__ void fragment(const uint8_t* at, uint32_t, const uint8_t* scale,
                                                  uint32_t (&r)[4]) {
    const uint2 v = levels_of(*reinterpret_cast<const uint32_t*>(at));
    const __half s = *reinterpret_cast<const __half*>(scale);
    const __half2 d = bounded_scales(__halves2half2(s, s));
    const uint32_t lo = v.x ^ 0x80808080u, hi = v.y ^ 0x80808080u;
    const __half2 w[4] = {__hmul2(byte_pair(lo, 0x4140u), d), __hmul2(byte_pair(lo, 0x4342u), d),
                          __hmul2(byte_pair(hi, 0x4140u), d), __hmul2(byte_pair(hi, 0x4342u), d)};
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = reinterpret_cast<const uint32_t&>(w[i]);
  }
  /// Rows of up to 64 bytes, 128 apart: eight rows by 16 bytes.
  static __device__ __forceinline__ uint32_t key_swizzle(uint32_t row) {
    return (row & 7u) << 4;
  }
  static __device__ __forceinline__ uint32_t value_swizzle(uint32_t row) {
    return (row >> 1 & 3u) << 5;
  }
};

}  // namespace sharpi::cuda
