// SPDX-License-Identifier: MIT
// Elements of rows in the file's block formats: eight consecutive values at a time, in the same
// arithmetic as dequantize_row. Serves every type in the kRows layout; also the codes that the
// repack kernel moves.
// Thread rule: pure functions, on device and host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include "cuda/kernels/products/fp4.cuh"
#endif
#include "cuda/kernels/products/weight_types.h"
#include "gguf/ggml_type.h"

namespace sharpi::cuda {

#define SHARPI_HD __host__ __device__ __forceinline__

struct BlockShape {
  uint32_t elements, bytes;
};
SHARPI_HD constexpr BlockShape block_shape(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return {1, 4};
    case GgmlType::kF16:
    case GgmlType::kBF16:
      return {1, 2};
    case GgmlType::kQ4_0:
    case GgmlType::kIQ4_NL:
      return {32, 18};
    case GgmlType::kQ4_1:
      return {32, 20};
    case GgmlType::kQ5_0:
      return {32, 22};
    case GgmlType::kQ5_1:
      return {32, 24};
    case GgmlType::kQ8_0:
      return {32, 34};
    case GgmlType::kMXFP4:
      return {32, 17};
    case GgmlType::kQ2_K:
      return {256, 84};
    case GgmlType::kQ3_K:
      return {256, 110};
    case GgmlType::kQ4_K:
      return {256, 144};
    case GgmlType::kQ5_K:
      return {256, 176};
    case GgmlType::kQ6_K:
      return {256, 210};
    case GgmlType::kIQ4_XS:
      return {256, 136};
    default:
      return {0, 0};
  }
}

static_assert(RowTypes::all([](GgmlType type) { return block_shape(type).elements != 0; }));

/// Blocks lie at odd addresses for some types: bytes only.
SHARPI_HD uint32_t load_u16(const uint8_t* p) {
  return p[0] | uint32_t{p[1]} << 8;
}
SHARPI_HD uint32_t load_u32(const uint8_t* p) {
  return load_u16(p) | load_u16(p + 2) << 16;
}

#ifdef __CUDACC__
__device__ __forceinline__ float half_at(const uint8_t* p) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(load_u16(p))));
}
#endif

/// Code of element k of a block (the types that have tiles); unsigned and linear but for MXFP4.
template <GgmlType kType>
SHARPI_HD uint32_t block_code(const uint8_t* b, uint32_t k) {
  if constexpr (kType == GgmlType::kQ8_0) {
    return b[2 + k] ^ 0x80u;
  } else if constexpr (kType == GgmlType::kQ4_0 || kType == GgmlType::kQ4_1) {
    const uint8_t* q = b + (kType == GgmlType::kQ4_0 ? 2 : 4);
    return q[k % 16] >> (k / 16 * 4) & 15u;
  } else if constexpr (kType == GgmlType::kMXFP4) {  // signed, and not linear
    return b[1 + k % 16] >> (k / 16 * 4) & 15u;
  } else if constexpr (kType == GgmlType::kQ5_0 || kType == GgmlType::kQ5_1) {
    const uint8_t* high = b + (kType == GgmlType::kQ5_0 ? 2 : 4);
    return (high[4 + k % 16] >> (k / 16 * 4) & 15u) | (high[k / 8] >> (k % 8) & 1u) << 4;
  } else if constexpr (kType == GgmlType::kQ4_K) {
    return b[16 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15u;
  } else if constexpr (kType == GgmlType::kQ5_K) {
    return (b[48 + k / 64 * 32 + k % 32] >> (k / 32 % 2 * 4) & 15u) |
           (b[16 + k % 32] >> (k / 32) & 1u) << 4;
  } else {
    static_assert(kType == GgmlType::kQ6_K);
    const uint32_t half = k / 128, in = k % 128;
    const uint32_t low = b[half * 64 + in % 64] >> (in / 64 * 4) & 15u;
    return low | (b[128 + half * 32 + in % 32] >> (in / 32 * 2) & 3u) << 4;
  }
}

#ifdef __CUDACC__

struct ScaleMin {
  float scale, min;  // value = scale * code - min
};

/// Scale and minimum number j (of 8) in the 12 bytes of Q4_K and Q5_K.
__device__ __forceinline__ ScaleMin packed_scale_min(const uint8_t* b, uint32_t j) {
  const uint8_t* c = b + 4;
  uint32_t s, m;
  if (j < 4) {
    s = c[j] & 63u;
    m = c[j + 4] & 63u;
  } else {
    s = (c[j + 4] & 15u) | (c[j - 4] >> 6) << 4;
    m = (c[j + 4] >> 4) | (c[j] >> 6) << 4;
  }
  return {__fmul_rn(half_at(b), static_cast<float>(s)),
          __fmul_rn(half_at(b + 2), static_cast<float>(m))};
}

__device__ __forceinline__ float iq4_value(uint32_t code) {
  // -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113
  const uint32_t table[4] = {0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u};
  const uint32_t word =
      code < 8 ? (code < 4 ? table[0] : table[1]) : (code < 12 ? table[2] : table[3]);
  return static_cast<float>(static_cast<int8_t>(word >> (code % 4 * 8)));
}

/// v = elements [k, k + 8) of a row; k is a multiple of 8.
__device__ __noinline__ static void row_values(GgmlType type, const uint8_t* row, uint32_t k,
                                               float (&v)[8]) {
  static_assert(
      kBranchIsWhole<RowTypes, GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0,
                     GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                     GgmlType::kIQ4_NL, GgmlType::kMXFP4, GgmlType::kIQ4_XS, GgmlType::kQ2_K,
                     GgmlType::kQ3_K, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K>);
  const BlockShape shape = block_shape(type);
  const uint8_t* b = row + uint64_t{k / shape.elements} * shape.bytes;
  const uint32_t e = k % shape.elements;
  switch (type) {
    case GgmlType::kF32:
#pragma unroll
      for (int n = 0; n < 8; ++n) v[n] = reinterpret_cast<const float*>(b)[n];
      return;
    case GgmlType::kF16:
#pragma unroll
      for (int n = 0; n < 8; ++n) v[n] = __half2float(reinterpret_cast<const __half*>(b)[n]);
      return;
    case GgmlType::kBF16:
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        v[n] = __uint_as_float(uint32_t{reinterpret_cast<const uint16_t*>(b)[n]} << 16);
      }
      return;
    case GgmlType::kQ8_0:
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        v[n] = __fmul_rn(half_at(b), static_cast<float>(static_cast<int8_t>(b[2 + e + n])));
      }
      return;
    case GgmlType::kQ4_0:
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const auto q = static_cast<int>(block_code<GgmlType::kQ4_0>(b, e + n));
        v[n] = __fmul_rn(half_at(b), static_cast<float>(q - 8));
      }
      return;
    case GgmlType::kQ4_1:
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const auto q = static_cast<float>(block_code<GgmlType::kQ4_1>(b, e + n));
        v[n] = __fadd_rn(__fmul_rn(half_at(b), q), half_at(b + 2));
      }
      return;
    case GgmlType::kQ5_0:
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const auto q = static_cast<int>(block_code<GgmlType::kQ5_0>(b, e + n));
        v[n] = __fmul_rn(half_at(b), static_cast<float>(q - 16));
      }
      return;
    case GgmlType::kQ5_1:
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const auto q = static_cast<float>(block_code<GgmlType::kQ5_1>(b, e + n));
        v[n] = __fadd_rn(__fmul_rn(half_at(b), q), half_at(b + 2));
      }
      return;
    case GgmlType::kIQ4_NL:
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t q = b[2 + (e + n) % 16] >> ((e + n) / 16 * 4) & 15u;
        v[n] = __fmul_rn(half_at(b), iq4_value(q));
      }
      return;
    case GgmlType::kMXFP4:
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t q = b[1 + (e + n) % 16] >> ((e + n) / 16 * 4) & 15u;
        v[n] = __fmul_rn(mxfp4_scale(b[0]), fp4_value(q));
      }
      return;
    case GgmlType::kIQ4_XS: {
      const uint32_t j = e / 32;
      const uint32_t low = b[4 + j / 2] >> (j % 2 * 4) & 15u,
                     high = load_u16(b + 2) >> (2 * j) & 3u;
      const float d =
          __fmul_rn(half_at(b), static_cast<float>(static_cast<int>(low | high << 4) - 32));
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t i = (e + n) % 32;
        v[n] = __fmul_rn(d, iq4_value(b[8 + 16 * j + i % 16] >> (i / 16 * 4) & 15u));
      }
      return;
    }
    case GgmlType::kQ2_K: {
      const uint32_t c = b[e / 16];
      const float scale = __fmul_rn(half_at(b + 80), static_cast<float>(c & 15u));
      const float min = __fmul_rn(half_at(b + 82), static_cast<float>(c >> 4));
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t i = e + n;
        const uint32_t q = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u;
        v[n] = __fsub_rn(__fmul_rn(scale, static_cast<float>(q)), min);
      }
      return;
    }
    case GgmlType::kQ3_K: {
      const uint32_t group = e / 16;
      const uint8_t* c = b + 96;
      const uint32_t low = c[group % 8] >> (group / 8 * 4) & 15u;
      const uint32_t high = c[8 + group % 4] >> (group / 4 * 2) & 3u;
      const float scale =
          __fmul_rn(half_at(b + 108), static_cast<float>(static_cast<int>(low | high << 4) - 32));
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const uint32_t i = e + n;
        const uint32_t q = b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3u;
        const uint32_t set = b[i % 32] >> (i / 32) & 1u;
        v[n] = __fmul_rn(scale, static_cast<float>(static_cast<int>(q + 4 * set) - 4));
      }
      return;
    }
    case GgmlType::kQ4_K: {
      const ScaleMin s = packed_scale_min(b, e / 32);
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const auto q = static_cast<float>(block_code<GgmlType::kQ4_K>(b, e + n));
        v[n] = __fsub_rn(__fmul_rn(s.scale, q), s.min);
      }
      return;
    }
    case GgmlType::kQ5_K: {
      const ScaleMin s = packed_scale_min(b, e / 32);
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const auto q = static_cast<float>(block_code<GgmlType::kQ5_K>(b, e + n));
        v[n] = __fsub_rn(__fmul_rn(s.scale, q), s.min);
      }
      return;
    }
    case GgmlType::kQ6_K: {
      const float scale =
          __fmul_rn(half_at(b + 208), static_cast<float>(static_cast<int8_t>(b[192 + e / 16])));
#pragma unroll
      for (uint32_t n = 0; n < 8; ++n) {
        const auto q = static_cast<int>(block_code<GgmlType::kQ6_K>(b, e + n));
        v[n] = __fmul_rn(scale, static_cast<float>(q - 32));
      }
      return;
    }
    default:  // launchers refuse it
#pragma unroll
      for (int n = 0; n < 8; ++n) v[n] = __int_as_float(0x7FC00000);
  }
}

#endif  // __CUDACC__

}  // namespace sharpi::cuda
