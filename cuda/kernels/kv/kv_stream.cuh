// SPDX-License-Identifier: MIT
// Stored rows in registers that are operands of tensor cores, for attention of few rows. Lane (g,
// t) = (lane / 4, lane % 4) holds
//   keys    of keys g and g + 8 of a tile of 16, elements t * n, .. of every chunk of 4n elements
//   values  of keys 2t, 2t + 1, 2t + 8, 2t + 9, elements 8g, .. of every chunk of 64 elements
// KeyCodec and ValueCodec are how they are multiplied (KvProduct):
//   bf16   as they are;  f32  as f16;
//   codes  keys: integer products with queries of two signed bytes, scaled per block of 32 in f32;
//          values: as f16 times their scale; with up to 8 vectors the weights take the scale, rows
//          0 to 7 of the first block of a chunk and rows 8 to 15 of the second, and values are
//          codes;
//   levels as codes, once their indices are looked up.
// Thread rule: device code.
#pragma once

#include "cuda/kernels/kv/kv_fragments.cuh"
#include "cuda/kernels/kv/kv_rows.cuh"

namespace sharpi::cuda {

constexpr int kStreamTile = 16;        // keys
constexpr uint32_t kStreamScales = 8;  // bytes per key and slice
constexpr float kQueryFine = 256.0f;   // second byte of a query: in units of 1 / 256 of the first

/// d = a (16 x 4n signed bytes) * b (4n x 8), n = 8 or 4.
template <int kDepth>
__device__ __forceinline__ void mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                       uint32_t b1) {
  if constexpr (kDepth == 32) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(0));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0), "r"(0));
  }
}

/// The same, d += a * b.
template <int kDepth>
__device__ __forceinline__ void add_mma_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
  if constexpr (kDepth == 32) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
        "{%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b0));
  }
}

/// Elements of a chunk of keys that are multiplied as codes: of one block each.
template <int kSlice>
constexpr int kCodeDepth = kSlice % 32 != 0 ? 16 : 32;

/// Scores of eight keys are the c of an accumulator; with pairs rows 8 to 15 of the products are
/// what rounding lost of rows 0 to 7.
template <KvDtype kType, int kSlice>
struct KeyCodec {
  static constexpr KvProduct kProduct = KvCodecTraits<kType>::kProduct;
  static constexpr bool kIntegers = uses_codes(kType);
  static constexpr bool kLevels = kProduct == KvProduct::kLevels;
  static constexpr int kDepth = kIntegers ? kCodeDepth<kSlice> : 32;  // elements of a chunk
  static constexpr int kChunks = (kSlice + kDepth - 1) / kDepth;
  static constexpr int kBytes = static_cast<int>(value_bytes(kType, kDepth / 4));  // of a chunk
  static constexpr int kWords = (kBytes + 3) / 4;
  static constexpr int kHalf = kChunks * kWords;  // registers of eight keys
  static_assert(!kIntegers || value_bytes(kType, 32) == (kLevels ? 16 : 32),
                "codes are signed bytes, or half bytes for such");
  /// Scores of eight keys; s[0..3] = c of an accumulator. `scales` of keys 2t, 2t + 1 as f16.
  template <bool kPairs, int kQueries>
  static __device__ __forceinline__ void multiply(const uint32_t* raw,
                                                  const uint32_t (&q)[kQueries],
                                                  const uint8_t* scales, uint32_t e0,
                                                  float (&s)[4]) {
    if constexpr (kIntegers) {
      multiply_bytes<kPairs, kQueries>(raw, q, scales, e0, s);
    } else {
      multiply_16<kPairs, kQueries>(raw, q, s);
    }
  }

  template <bool kPairs, int kQueries>
  static __device__ __forceinline__ void multiply_16(const uint32_t* raw,
                                                     const uint32_t (&q)[kQueries], float (&s)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kProduct == KvProduct::kBf16) {
          r[i] = raw[c * kWords + i];
        } else {
          static_assert(kType == KvDtype::kF32, "how this codec becomes f16 in registers");
          r[i] = pack_f16(__uint_as_float(raw[(c * kWords + 2 * i) % kHalf]),
                          __uint_as_float(raw[(c * kWords + 2 * i + 1) % kHalf]));
        }
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        const uint32_t a[4] = {q[(c * 8 + m * 4) % kQueries], q[(c * 8 + m * 4 + 1) % kQueries],
                               q[(c * 8 + m * 4 + 2) % kQueries],
                               q[(c * 8 + m * 4 + 3) % kQueries]};
        mma_16(kProduct == KvProduct::kBf16, s, a, r[2 * m], r[2 * m + 1]);
      }
    }
    if (kPairs) {
      s[0] += s[2];
      s[1] += s[3];
    }
  }

  template <bool kPairs, int kQueries>
  static __device__ __forceinline__ void multiply_bytes(const uint32_t* raw,
                                                        const uint32_t (&q)[kQueries],
                                                        const uint8_t* scales, uint32_t e0,
                                                        float (&s)[4]) {
    constexpr int kRegs = kDepth / 8;  // of A per term
    const uint4 packed = *reinterpret_cast<const uint4*>(scales);
    const uint32_t words[2][2] = {{packed.x, packed.y}, {packed.z, packed.w}};
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = 0.0f;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      float scale[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kDepth == 32) {
          const float2 pair = __half22float2(reinterpret_cast<const __half2&>(words[i][c / 2]));
          scale[i] = c % 2 == 0 ? pair.x : pair.y;
        } else {
          const uint32_t block = (e0 + static_cast<uint32_t>(c) * 16) / 32 - e0 / 32;
          const uint32_t word = block < 2 ? words[i][0] : words[i][1];
          scale[i] = __half2float(
              __ushort_as_half(static_cast<uint16_t>(block % 2 == 0 ? word : word >> 16)));
        }
      }
      uint32_t b0 = raw[c * kWords], b1 = raw[c * kWords + kWords - 1];
      uint2 more = {};
      if constexpr (kLevels) {
        const LevelTerms terms = level_terms(b0);
        b0 = terms.lower.x, b1 = terms.lower.y;
        more = terms.upper;
      }
      int32_t sum[2][4];
#pragma unroll
      for (int term = 0; term < (kPairs ? 1 : 2); ++term) {
        uint32_t a[4] = {};
#pragma unroll
        for (int i = 0; i < kDepth / 8; ++i) {
          a[i] = q[((kPairs ? c : 2 * c + term) * kRegs + i) % kQueries];
        }
        mma_s8<kDepth>(sum[term], a, b0, b1);
        if constexpr (kLevels) add_mma_s8<kDepth>(sum[term], a, more.x, more.y);
      }
#pragma unroll
      for (int i = 0; i < (kPairs ? 2 : 4); ++i) {
        // |coarse| <= 32 * 127^2, so this fits.
        const int32_t fine = kPairs ? sum[0][2 + i % 2] : sum[1][i];
        s[i] = fmaf(static_cast<float>(sum[0][i] * 256 + fine), scale[i % 2], s[i]);
      }
    }
  }
};

/// Weights that multiply codes are this much larger, so that few of them are subnormal; sums of
/// codes are in units of kCodeUnit.
constexpr float kCodeWeight = 64.0f, kCodeUnit = 0x1p24f / kCodeWeight;

/// B operands of values: o += weights * values of a chunk of 64 elements; p: A operand of 16 keys.
template <KvDtype kType, int kSlice>
struct ValueCodec {
  static constexpr int kChunks = (kSlice + 63) / 64;
  static constexpr KvProduct kProduct = KvCodecTraits<kType>::kProduct;
  static constexpr int kWords = static_cast<int>(value_bytes(kType, 8)) / 4;
  static constexpr int kChunk = 4 * kWords;  // registers
  /// With up to 8 vectors: weights times scales multiply codes (multiply_codes()).
  static constexpr bool kCodes = uses_codes(kType) && kSlice % 32 == 0;
  static constexpr bool kLevels = kProduct == KvProduct::kLevels;

  /// The bytes of four elements of a key; its registers are raw[key * kWords] on.
  static __device__ __forceinline__ uint32_t bytes_of(const uint32_t* raw, int key, int word) {
    if constexpr (kLevels) {
      const uint2 levels = levels_of(raw[key * kWords]);
      return word == 0 ? levels.x : levels.y;
    } else {
      return raw[key * kWords + word];
    }
  }
  /// Scales of two keys, within what f16 products of bytes take.
  static __device__ __forceinline__ __half2 bounded(__half2 scales) {
    if constexpr (kLevels) return bounded_scales(scales);
    return __hmin2(scales, __float2half2_rn(kMostScale));
  }
  static __device__ __forceinline__ __half2 scales_of(uint32_t packed) {
    return bounded(reinterpret_cast<const __half2&>(packed));
  }

  /// Codes of four keys: c + 128 as f16 subnormals (c + 128) * 2^-24, which tensor cores multiply
  /// exactly, less 128 * 2^-24. p: weights of the keys 2t, 2t + 1 in p[0], of the other two in
  /// p[2]. Columns of the first block of the chunk (lanes t < 2) are in o[j][0] and o[j][1], those
  /// of the second in o[j][2] and o[j][3], in units of 2^-24.
  static __device__ __forceinline__ void multiply_codes(const uint32_t* raw, const uint8_t* scales,
                                                        int c, const uint32_t (&p)[4],
                                                        float (&o)[8][4]) {
    const uint32_t t = threadIdx.x % 4;
    uint32_t a[4], b[2][8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 w = *reinterpret_cast<const uint4*>(
          scales + (2 * t + 8u * static_cast<uint32_t>(half)) * kStreamScales);
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const uint32_t packed =
            __byte_perm(c == 0 ? w.x : w.y, c == 0 ? w.z : w.w, block == 0 ? 0x5410u : 0x7632u);
        const __half2 scaled =
            __hmul2(scales_of(packed), reinterpret_cast<const __half2&>(p[2 * half]));
        a[2 * half + block] = reinterpret_cast<const uint32_t&>(scaled);
      }
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        const uint32_t first = bytes_of(raw, 2 * half, word),
                       other = bytes_of(raw, 2 * half + 1, word);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t x = __byte_perm(first, other, j < 2 ? 0x5410u : 0x7632u);
          if (j % 2 == 1) x >>= 8;
          b[half][word * 4 + j] = (x & 0x00FF00FFu) ^ 0x00800080u;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) mma_16(false, o[j], a, b[0][j], b[1][j]);
#pragma unroll
    for (int j = 0; j < 8; ++j) mma_16(false, o[j], a, 0x80808080u, 0x80808080u);
  }

  /// raw: four keys' registers. `scales` of the tile. p: the A operand of pack_weights().
  template <bool kPairs>
  static __device__ __forceinline__ void multiply(const uint32_t* raw, const uint8_t* scales,
                                                  uint32_t e0, int c, const uint32_t (&p)[4],
                                                  float (&o)[8][4]) {
    if constexpr (kPairs && kCodes) {
      multiply_codes(raw, scales, c, p, o);
    } else if constexpr (uses_codes(kType)) {
      const uint32_t lane = threadIdx.x % 32, t = lane % 4;
      const uint32_t d = static_cast<uint32_t>(c) * 64 + lane / 4 * 8;
      const uint32_t block = kSlice % 32 == 0 ? d / 32 : (e0 + d) / 32 - e0 / 32;
      const bool second = kSlice % 32 == 0 ? c == 1 : block >= 2;
      const uint32_t pick = block % 2 == 0 ? 0x5410u : 0x7632u;
      uint32_t b[2][8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 w = *reinterpret_cast<const uint4*>(
            scales + (2 * t + 8u * static_cast<uint32_t>(half)) * kStreamScales);
        const uint32_t packed = __byte_perm(second ? w.y : w.x, second ? w.w : w.z, pick);
        const __half2 scale = scales_of(packed);
#pragma unroll
        for (int word = 0; word < 2; ++word) {
          const uint32_t first = bytes_of(raw, 2 * half, word),
                         other = bytes_of(raw, 2 * half + 1, word);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            uint32_t x = __byte_perm(first, other, j < 2 ? 0x5410u : 0x7632u);
            if (j % 2 == 1) x >>= 8;
            x = (x & 0x00FF00FFu) ^ 0x64806480u;  // 1024 + 128 + byte
            const __half2 y = __hmul2(
                __hsub2(reinterpret_cast<const __half2&>(x), __float2half2_rn(1152.0f)), scale);
            b[half][word * 4 + j] = reinterpret_cast<const uint32_t&>(y);
          }
        }
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) mma_16(false, o[j], p, b[0][j], b[1][j]);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        uint32_t b[2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t *x = raw + 2 * half * kWords, *y = raw + (2 * half + 1) * kWords;
          if constexpr (kProduct == KvProduct::kBf16) {
            b[half] = __byte_perm(x[j / 2], y[j / 2], j % 2 == 0 ? 0x5410u : 0x7632u);
          } else {
            static_assert(kType == KvDtype::kF32, "how this codec becomes f16 in registers");
            b[half] = pack_f16(__uint_as_float(x[j % kWords]), __uint_as_float(y[j % kWords]));
          }
        }
        mma_16(kProduct == KvProduct::kBf16, o[j], p, b[0], b[1]);
      }
    }
  }
};

}  // namespace sharpi::cuda
