// SPDX-License-Identifier: MIT
// Products with f32 activations in NEON: chunks of 4 weight rows are expanded to f32 in the first
// level cache and multiplied with blocks of activation rows, vectors along k.
// Every result is the sum, in one fixed order, of 8 lanes that run over k in steps of 8, then of
// the elements behind the last whole step, whatever the number of rows. Bound: FMA, or the
// expansion.
#include <arm_neon.h>

#include "cpu/arm/kernel_tables.h"
#include "cpu/arm/quant_neon_k.h"
#include "cpu/arm/vec_neon.h"
#include "cpu/matmul_kernels.h"

namespace sharpi::cpu {
namespace {

constexpr int kWeightRows = 4, kTileRows2 = 2;  // 8 sums of two registers each, of 32
constexpr uint64_t kChunk = 512;                // 4 rows x 512 floats: 8 KiB
constexpr uint32_t kRowBlock = 32;              // activation rows whose sums wait: 4 KiB

/// 8 weights of a row at element i, as f32.
template <GgmlType kType>
inline V::R load_weights(const std::byte* row, uint64_t i) {
  if constexpr (kType == GgmlType::kF32) {
    return V::load(reinterpret_cast<const float*>(row + i * 4));
  } else {
    const auto* p = reinterpret_cast<const uint16_t*>(row + i * 2);
    if constexpr (kType == GgmlType::kBF16) return V::load_bf16(p);
    return {floats_of_halves(vld1_u16(p)), floats_of_halves(vld1_u16(p + 4))};
  }
}
template <GgmlType kType>
inline float load_weight(const std::byte* row, uint64_t i) {
  if constexpr (kType == GgmlType::kF16) {
    return half_at(reinterpret_cast<const uint8_t*>(row + i * 2));
  }
  uint32_t bits = 0;
  if constexpr (kType == GgmlType::kF32) {
    std::memcpy(&bits, row + i * 4, sizeof bits);
  } else {
    uint16_t high;
    std::memcpy(&high, row + i * 2, sizeof high);
    bits = uint32_t{high} << 16;
  }
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

/// acc[a][r] += w row a * x row r over n elements, a multiple of 8.
template <GgmlType kType, int kW, int kR>
inline void tile(const std::byte* const* w, const float* const* x, uint64_t w_at, uint64_t x_at,
                 uint64_t n, V::R* acc) {
  V::R sum[kW][kR];
#pragma GCC unroll 4
  for (uint32_t a = 0; a < kW; ++a) {
#pragma GCC unroll 2
    for (uint32_t r = 0; r < kR; ++r) sum[a][r] = acc[a * kRowBlock + r];
  }
  for (uint64_t i = 0; i < n; i += 8) {
    V::R xv[kR];
#pragma GCC unroll 2
    for (int r = 0; r < kR; ++r) xv[r] = V::load(x[r] + x_at + i);
#pragma GCC unroll 4
    for (int a = 0; a < kW; ++a) {
      const V::R wv = load_weights<kType>(w[a], w_at + i);
#pragma GCC unroll 2
      for (int r = 0; r < kR; ++r) sum[a][r] = V::fma(wv, xv[r], sum[a][r]);
    }
  }
#pragma GCC unroll 4
  for (uint32_t a = 0; a < kW; ++a) {
#pragma GCC unroll 2
    for (uint32_t r = 0; r < kR; ++r) acc[a * kRowBlock + r] = sum[a][r];
  }
}

template <GgmlType kType, int kW>
inline void tiles_of(const std::byte* const* w, const float* const* x, uint32_t n_rows,
                     uint64_t w_at, uint64_t x_at, uint64_t n, V::R* acc) {
  uint32_t r = 0;
  for (; r + kTileRows2 <= n_rows; r += kTileRows2) {
    tile<kType, kW, kTileRows2>(w, x + r, w_at, x_at, n, acc + r);
  }
  if (r < n_rows) tile<kType, kW, 1>(w, x + r, w_at, x_at, n, acc + r);
}

template <GgmlType kType>
inline void all_tiles(const std::byte* const* w, uint32_t n_weights, const float* const* x,
                      uint32_t n_rows, uint64_t w_at, uint64_t x_at, uint64_t n, V::R* acc) {
  if (n_weights == kWeightRows) {
    tiles_of<kType, kWeightRows>(w, x, n_rows, w_at, x_at, n, acc);
    return;
  }
  for (uint32_t a = 0; a < n_weights; ++a) {
    tiles_of<kType, 1>(w + a, x, n_rows, w_at, x_at, n, acc + a * kRowBlock);
  }
}

/// Runs body(weight row pointers, their number, x row pointers, their number, sums) for every group
/// of weight rows and block of activation rows, and writes sum + rest(weight row, x row).
template <class Body, class Rest>
inline void for_blocks(const MatmulJob& job, Body body, Rest rest) {
  V::R acc[kWeightRows * kRowBlock];
  const float* x[kRowBlock];
  for (uint32_t r0 = 0; r0 < job.n_rows; r0 += kRowBlock) {
    const uint32_t n_rows = job.n_rows - r0 < kRowBlock ? job.n_rows - r0 : kRowBlock;
    for (uint32_t r = 0; r < n_rows; ++r) {
      const uint64_t id = job.ids != nullptr ? job.ids[r0 + r] : r0 + r;
      x[r] = reinterpret_cast<const float*>(job.x + id * job.x_stride);
    }
    for (uint64_t o = 0; o < job.n_out; o += kWeightRows) {
      const auto n_weights =
          static_cast<uint32_t>(job.n_out - o < kWeightRows ? job.n_out - o : kWeightRows);
      const std::byte* w[kWeightRows] = {};
      for (uint32_t a = 0; a < n_weights; ++a) {
        w[a] = job.w + (o + a) * job.row_bytes;
        for (uint32_t r = 0; r < n_rows; ++r) acc[a * kRowBlock + r] = V::zero();
      }
      body(w, n_weights, x, n_rows, acc);
      for (uint32_t a = 0; a < n_weights; ++a) {
        for (uint32_t r = 0; r < n_rows; ++r) {
          job.y[(r0 + r) * job.y_stride + o + a] =
              V::sum(acc[a * kRowBlock + r]) + rest(w[a], x[r]);
        }
      }
    }
  }
}

template <GgmlType kType>
void float_job(const MatmulJob& job) {
  const uint64_t n_whole = job.n_in / 8 * 8;
  for_blocks(
      job,
      [&](const std::byte* const* w, uint32_t n_weights, const float* const* x, uint32_t n_rows,
          V::R* acc) {
        // Long rows in pieces, so that the pieces of x stay in the second level cache.
        constexpr uint64_t kPiece = 2048;
        for (uint64_t i = 0; i < n_whole; i += kPiece) {
          const uint64_t n = n_whole - i < kPiece ? n_whole - i : kPiece;
          all_tiles<kType>(w, n_weights, x, n_rows, i, i, n, acc);
        }
      },
      [&](const std::byte* w, const float* x) {
        float sum = 0;
        for (uint64_t i = n_whole; i < job.n_in; ++i) sum += load_weight<kType>(w, i) * x[i];
        return sum;
      });
}

/// 128 weights as f32.
template <class Format, uint32_t kHalf>
inline void expand_half(const uint8_t* p, const float* s, const float* m, float* out) {
  int8x16_t code[8];
  Format::template codes<kHalf>(p, code);
  for (uint32_t i = 0; i < 8; ++i, out += 16) {
    const uint32_t group = Format::kGroup16 ? 8 * kHalf + i : 4 * kHalf + i / 2;
    float32x4_t v[4];
    scaled_bytes(code[i], s[group], v);
    for (uint32_t j = 0; j < 4; ++j) {
      if constexpr (!Format::kSigned) v[j] = vaddq_f32(v[j], vdupq_n_f32(m[group]));
      vst1q_f32(out + 4 * j, v[j]);
    }
  }
}
/// 256 weights as f32; the padded tail of a row comes out as zeros.
template <class Format>
inline void expand_unit(const uint8_t* p, float* out) {
  constexpr uint32_t kVectors = Format::kGroup16 ? 4 : 2;
  Scales scales;
  Format::scales(p, scales);
  float s[16], m[16] = {};
  for (uint32_t i = 0; i < kVectors; ++i) {
    vst1q_f32(s + 4 * i, scales.s[i]);
    if constexpr (!Format::kSigned) vst1q_f32(m + 4 * i, scales.m[i]);
  }
  expand_half<Format, 0>(p, s, m, out);
  expand_half<Format, 1>(p, s, m, out + 128);
}

template <class Format>
void block_job(const MatmulJob& job) {
  alignas(32) float expanded[kWeightRows][kChunk];
  const std::byte* e[kWeightRows];
  for (int a = 0; a < kWeightRows; ++a) e[a] = reinterpret_cast<const std::byte*>(expanded[a]);
  for_blocks(
      job,
      [&](const std::byte* const* w, uint32_t n_weights, const float* const* x, uint32_t n_rows,
          V::R* acc) {
        for (uint64_t i = 0; i < job.n_in; i += kChunk) {
          const uint64_t n = job.n_in - i < kChunk ? job.n_in - i : kChunk;
          for (uint32_t a = 0; a < n_weights; ++a) {
            const auto* p =
                reinterpret_cast<const uint8_t*>(w[a]) + i / kInt8RowUnit * Format::kUnitBytes;
            for (uint64_t at = 0; at < n; at += kInt8RowUnit, p += Format::kUnitBytes) {
              uint8_t buffer[Format::kUnitBytes];
              expand_unit<Format>(
                  n - at >= kInt8RowUnit ? p : padded_unit<Format>(p, n - at, buffer),
                  expanded[a] + at);
            }
          }
          all_tiles<GgmlType::kF32>(e, n_weights, x, n_rows, 0, i, n, acc);
        }
      },
      [](const std::byte*, const float*) { return 0.0f; });
}

}  // namespace

MatmulJobFn f32_neon(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return float_job<GgmlType::kF32>;
    case GgmlType::kF16:
      return float_job<GgmlType::kF16>;
    case GgmlType::kBF16:
      return float_job<GgmlType::kBF16>;
    default:
      return with_format(type, MatmulJobFn{nullptr},
                         [](auto format) -> MatmulJobFn { return block_job<decltype(format)>; });
  }
}

}  // namespace sharpi::cpu
