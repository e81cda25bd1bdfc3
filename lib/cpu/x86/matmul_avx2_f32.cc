// SPDX-License-Identifier: MIT
// Products with f32 activations in AVX2: chunks of 4 weight rows are expanded to f32 in the first
// level cache and multiplied with blocks of activation rows, vectors along k.
// Every result is the sum, in one fixed order, of 8 lanes that run over k in steps of 8, then of
// the elements behind the last whole step, whatever the number of rows. Bound: FMA, or the
// expansion.
#include <immintrin.h>

#include "cpu/matmul_kernels.h"
#include "cpu/x86/kernel_tables.h"
#include "cpu/x86/quant_avx2_k.h"

namespace sharpi::cpu {
namespace {

constexpr int kWeightRows = 4, kTileRows2 = 2;  // 8 accumulators of 16 registers
constexpr uint64_t kChunk = 512;                // 4 rows x 512 floats: 8 KiB
constexpr uint32_t kRowBlock = 32;              // activation rows whose sums wait: 4 KiB

inline float half_to_float(const std::byte* p) {
  uint16_t h;
  std::memcpy(&h, p, sizeof h);
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/// 8 weights of a row at element i, as f32.
template <GgmlType kType>
inline __m256 load_weights(const std::byte* row, uint64_t i) {
  if constexpr (kType == GgmlType::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(row + i * 4));
  } else {
    const __m128i v = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + i * 2));
    if constexpr (kType == GgmlType::kF16) return _mm256_cvtph_ps(v);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
  }
}
template <GgmlType kType>
inline float load_weight(const std::byte* row, uint64_t i) {
  if constexpr (kType == GgmlType::kF16) return half_to_float(row + i * 2);
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
                 uint64_t n, __m256* acc) {
  __m256 sum[kW][kR];
#pragma GCC unroll 4
  for (uint32_t a = 0; a < kW; ++a) {
#pragma GCC unroll 2
    for (uint32_t r = 0; r < kR; ++r) sum[a][r] = acc[a * kRowBlock + r];
  }
  for (uint64_t i = 0; i < n; i += 8) {
    __m256 xv[kR];
#pragma GCC unroll 2
    for (int r = 0; r < kR; ++r) xv[r] = _mm256_loadu_ps(x[r] + x_at + i);
#pragma GCC unroll 4
    for (int a = 0; a < kW; ++a) {
      const __m256 wv = load_weights<kType>(w[a], w_at + i);
#pragma GCC unroll 2
      for (int r = 0; r < kR; ++r) sum[a][r] = _mm256_fmadd_ps(wv, xv[r], sum[a][r]);
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
                     uint64_t w_at, uint64_t x_at, uint64_t n, __m256* acc) {
  uint32_t r = 0;
  for (; r + kTileRows2 <= n_rows; r += kTileRows2) {
    tile<kType, kW, kTileRows2>(w, x + r, w_at, x_at, n, acc + r);
  }
  if (r < n_rows) tile<kType, kW, 1>(w, x + r, w_at, x_at, n, acc + r);
}

template <GgmlType kType>
inline void all_tiles(const std::byte* const* w, uint32_t n_weights, const float* const* x,
                      uint32_t n_rows, uint64_t w_at, uint64_t x_at, uint64_t n, __m256* acc) {
  if (n_weights == kWeightRows) {
    tiles_of<kType, kWeightRows>(w, x, n_rows, w_at, x_at, n, acc);
    return;
  }
  for (uint32_t a = 0; a < n_weights; ++a) {
    tiles_of<kType, 1>(w + a, x, n_rows, w_at, x_at, n, acc + a * kRowBlock);
  }
}

inline float sum_of(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

/// Runs body(weight row pointers, their number, x row pointers, their number, sums) for every group
/// of weight rows and block of activation rows, and writes sum + rest(weight row, x row).
template <class Body, class Rest>
inline void for_blocks(const MatmulJob& job, Body body, Rest rest) {
  __m256 acc[kWeightRows * kRowBlock];
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
        for (uint32_t r = 0; r < n_rows; ++r) acc[a * kRowBlock + r] = _mm256_setzero_ps();
      }
      body(w, n_weights, x, n_rows, acc);
      for (uint32_t a = 0; a < n_weights; ++a) {
        for (uint32_t r = 0; r < n_rows; ++r) {
          job.y[(r0 + r) * job.y_stride + o + a] =
              sum_of(acc[a * kRowBlock + r]) + rest(w[a], x[r]);
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
          __m256* acc) {
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

/// 256 weights as f32; the padded tail of a row comes out as zeros.
template <class Format>
inline void expand_unit(const uint8_t* p, float* out) {
  Scales scales;
  Format::scales(p, scales);
  alignas(32) float s[16], m[16] = {};
  for (int i = 0; i < (Format::kGroup16 ? 2 : 1); ++i) {
    _mm256_store_ps(s + 8 * i, scales.s[i]);
    if (!Format::kSigned) _mm256_store_ps(m + 8 * i, scales.m[i]);
  }
  alignas(32) uint8_t code[256];
  __m256i u[8];
  Format::codes(p, u);
  for (int g = 0; g < 8; ++g) _mm256_store_si256(reinterpret_cast<__m256i*>(code + 32 * g), u[g]);
  keep_in_memory(s), keep_in_memory(m), keep_in_memory(code);
  for (int i = 0; i < 32; ++i, out += 8) {
    const int g = Format::kGroup16 ? i / 2 : i / 4;
    const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(code + 8 * i));
    const __m256i wide =
        Format::kSigned ? _mm256_cvtepi8_epi32(eight) : _mm256_cvtepu8_epi32(eight);
    _mm256_storeu_ps(
        out, _mm256_fmadd_ps(_mm256_cvtepi32_ps(wide), _mm256_set1_ps(s[g]), _mm256_set1_ps(m[g])));
  }
}

template <class Format>
void block_job(const MatmulJob& job) {
  alignas(32) float expanded[kWeightRows][kChunk];
  const std::byte* e[kWeightRows];
  for (int a = 0; a < kWeightRows; ++a) e[a] = reinterpret_cast<const std::byte*>(expanded[a]);
  for_blocks(
      job,
      [&](const std::byte* const* w, uint32_t n_weights, const float* const* x, uint32_t n_rows,
          __m256* acc) {
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

MatmulJobFn f32_avx2(GgmlType type) {
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
