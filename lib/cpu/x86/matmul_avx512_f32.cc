// SPDX-License-Identifier: MIT
// Products with f32 activations: chunks of kWeightRows weight rows are expanded to f32 in the first
// level cache and multiplied with blocks of activation rows, vectors along k.
// Every result is the sum, in one fixed order, of 16 lanes that run over k in steps of 16, whatever
// the number of rows. Bound: FMA (many rows), expansion (few rows), bytes (f32, f16, bf16; few
// rows).
#include <immintrin.h>

#include "cpu/matmul_kernels.h"
#include "cpu/x86/expand_avx512.h"
#include "cpu/x86/kernel_tables.h"

namespace sharpi::cpu {
namespace {

constexpr int kWeightRows = 4, kTileRows6 = 6;  // 24 accumulators of 32 registers
constexpr uint64_t kChunk = 512;                // 4 rows x 512 floats: 8 KiB
constexpr uint32_t kRowBlock = 48;              // activation rows whose sums wait: 12 KiB

constexpr uint64_t kAheadBytes = 1024;  // of each of the 4 rows, when they come from memory
template <GgmlType kType>
constexpr uint64_t kElementBytes = kType == GgmlType::kF32 ? 4 : 2;

/// 16 weights (or the last `mask` ones) of a row at element i, as f32.
template <GgmlType kType>
inline __m512 load_weights(const std::byte* row, uint64_t i, __mmask16 mask) {
  if constexpr (kType == GgmlType::kF32) {
    return _mm512_maskz_loadu_ps(mask, row + i * 4);
  } else {
    const __m256i v = _mm256_maskz_loadu_epi16(mask, row + i * 2);
    if constexpr (kType == GgmlType::kF16) return _mm512_cvtph_ps(v);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }
}

/// A part of a tile: 16 elements at i (or the last `mask` ones) of kW weight and kR activation
/// rows.
template <GgmlType kType, bool kStream, int kW, int kR>
inline void add_columns(const std::byte* const* w, const float* const* x, uint64_t w_at,
                        uint64_t x_at, __mmask16 mask, __m512 (&sum)[kW][kR]) {
  __m512 xv[kR];
#pragma GCC unroll 6
  for (int r = 0; r < kR; ++r) xv[r] = _mm512_maskz_loadu_ps(mask, x[r] + x_at);
#pragma GCC unroll 4
  for (int a = 0; a < kW; ++a) {
    const __m512 wv = load_weights<kType>(w[a], w_at, mask);
    if constexpr (kStream && kR <= 2) {
      _mm_prefetch(reinterpret_cast<const char*>(w[a] + w_at * kElementBytes<kType>) + kAheadBytes,
                   _MM_HINT_T0);
    }
#pragma GCC unroll 6
    for (int r = 0; r < kR; ++r) sum[a][r] = _mm512_fmadd_ps(wv, xv[r], sum[a][r]);
  }
}

/// acc[a][r] += w row a * x row r over n elements.
template <GgmlType kType, bool kStream, int kW, int kR>
inline void tile(const std::byte* const* w, const float* const* x, uint64_t w_at, uint64_t x_at,
                 uint64_t n, __m512* acc) {
  __m512 sum[kW][kR];
#pragma GCC unroll 4
  for (uint32_t a = 0; a < kW; ++a) {
#pragma GCC unroll 6
    for (uint32_t r = 0; r < kR; ++r) sum[a][r] = acc[a * kRowBlock + r];
  }
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16)
    add_columns<kType, kStream, kW, kR>(w, x, w_at + i, x_at + i, 0xFFFF, sum);
  if (i < n) {
    add_columns<kType, kStream, kW, kR>(w, x, w_at + i, x_at + i,
                                        static_cast<__mmask16>((1u << (n - i)) - 1), sum);
  }
#pragma GCC unroll 4
  for (uint32_t a = 0; a < kW; ++a) {
#pragma GCC unroll 6
    for (uint32_t r = 0; r < kR; ++r) acc[a * kRowBlock + r] = sum[a][r];
  }
}

template <GgmlType kType, bool kStream, int kW>
inline void tiles_of(const std::byte* const* w, const float* const* x, uint32_t n_rows,
                     uint64_t w_at, uint64_t x_at, uint64_t n, __m512* acc) {
  uint32_t r = 0;
  for (; r + kTileRows6 <= n_rows; r += kTileRows6) {
    tile<kType, kStream, kW, kTileRows6>(w, x + r, w_at, x_at, n, acc + r);
  }
  for (; r + 2 <= n_rows; r += 2) tile<kType, kStream, kW, 2>(w, x + r, w_at, x_at, n, acc + r);
  for (; r < n_rows; ++r) tile<kType, kStream, kW, 1>(w, x + r, w_at, x_at, n, acc + r);
}

template <GgmlType kType, bool kStream>
inline void all_tiles(const std::byte* const* w, uint32_t n_weights, const float* const* x,
                      uint32_t n_rows, uint64_t w_at, uint64_t x_at, uint64_t n, __m512* acc) {
  if (n_weights == kWeightRows) {
    tiles_of<kType, kStream, kWeightRows>(w, x, n_rows, w_at, x_at, n, acc);
    return;
  }
  for (uint32_t a = 0; a < n_weights; ++a) {
    tiles_of<kType, kStream, 1>(w + a, x, n_rows, w_at, x_at, n, acc + a * kRowBlock);
  }
}

/// Runs body(weight row pointers, their number, x row pointers, their number, sums) for every group
/// of weight rows and block of activation rows, and writes the results.
template <class Body>
inline void for_blocks(const MatmulJob& job, Body body) {
  __m512 acc[kWeightRows * kRowBlock];
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
        for (uint32_t r = 0; r < n_rows; ++r) acc[a * kRowBlock + r] = _mm512_setzero_ps();
      }
      body(w, n_weights, x, n_rows, acc);
      for (uint32_t a = 0; a < n_weights; ++a) {
        for (uint32_t r = 0; r < n_rows; ++r) {
          job.y[(r0 + r) * job.y_stride + o + a] = _mm512_reduce_add_ps(acc[a * kRowBlock + r]);
        }
      }
    }
  }
}

template <GgmlType kType>
void float_job(const MatmulJob& job) {
  for_blocks(job, [&](const std::byte* const* w, uint32_t n_weights, const float* const* x,
                      uint32_t n_rows, __m512* acc) {
    // Long rows in pieces, so that the pieces of x stay in the second level cache.
    constexpr uint64_t kPiece = 2048;
    for (uint64_t i = 0; i < job.n_in; i += kPiece) {
      const uint64_t n = job.n_in - i < kPiece ? job.n_in - i : kPiece;
      all_tiles<kType, true>(w, n_weights, x, n_rows, i, i, n, acc);
    }
  });
}

template <class Format>
void block_job(const MatmulJob& job) {
  alignas(64) float expanded[kWeightRows][kChunk];
  const std::byte* e[kWeightRows];
  for (int a = 0; a < kWeightRows; ++a) e[a] = reinterpret_cast<const std::byte*>(expanded[a]);
  for_blocks(job, [&](const std::byte* const* w, uint32_t n_weights, const float* const* x,
                      uint32_t n_rows, __m512* acc) {
    for (uint64_t i = 0; i < job.n_in; i += kChunk) {
      const uint64_t n = job.n_in - i < kChunk ? job.n_in - i : kChunk;
      for (uint32_t a = 0; a < n_weights; ++a) {
        expand_row<Format, kChunk / 256>(reinterpret_cast<const uint8_t*>(w[a]), i, n,
                                         [to = expanded[a]](uint64_t at, __m512 low, __m512 high) {
                                           _mm512_store_ps(to + at, low);
                                           _mm512_store_ps(to + at + 16, high);
                                         });
      }
      all_tiles<GgmlType::kF32, false>(e, n_weights, x, n_rows, 0, i, n, acc);
    }
  });
}

}  // namespace

MatmulJobFn f32_avx512(GgmlType type) {
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
