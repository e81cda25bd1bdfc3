// SPDX-License-Identifier: MIT
// Products with int8 activations over panels: 32 weight rows are unpacked once to byte codes
// [k/4][32 rows][4], with scales and minima [group][32 rows], and multiplied with all activation
// rows, one output per lane, 6 activation rows at a time.
//   y = sum_g s_g * d_g * (sum_i code_i * q_i) + min_g * (d_g * sum_i q_i), groups in order,
//       + sum over the row's peaks s_g * code_i * x_i
// Bound: vpdpbusd (8 per group of 32 and vector of outputs), plus 4 operations of scaling.
#include <immintrin.h>

#include "cpu/matmul_kernels.h"
#include "cpu/x86/expand_avx512.h"
#include "cpu/x86/kernel_tables.h"
#include "cpu/x86/transpose_avx512.h"

namespace sharpi::cpu {
namespace {

constexpr int kVectors = 2, kRowTile = 6;            // 12 integer and 12 float sums of 32 registers
constexpr uint64_t kQuadBytes = kInt8PanelRows * 4;  // four elements of all rows
constexpr uint64_t kUnitsAhead = 4;  // of each of 16 rows that are unpacked side by side
static_assert(kInt8PanelRows == 16 * kVectors);

/// A panel in scratch: codes, then per group kInt8PanelRows scales and as many minima.
struct Panel {
  uint8_t* codes = nullptr;
  float* scales = nullptr;
  uint64_t n_units = 0;
};

/// Stores lane r of 16 vectors as vector r, `stride` bytes apart.
inline void store_transposed(__m512i* v, std::byte* to, uint64_t stride) {
  transpose(v);
  for (uint64_t i = 0; i < 16; ++i) _mm512_store_si512(to + i * stride, v[i]);
}

/// 256 elements of 16 rows into the lanes at `half` of the panel.
template <class Format>
inline void unpack_unit(const uint8_t* const* rows, const Panel& panel, uint64_t unit,
                        uint64_t half) {
  __m512i code[4][16], scale[2][16];
  const __m512 min = _mm512_set1_ps(Format::kMin);
  const __m512 only_min = _mm512_mask_mov_ps(_mm512_set1_ps(1), 0xFF00, min);
  for (int r = 0; r < 16; ++r) {
    __m512i u[4];
    Format::template codes<false>(rows[r], u);
    for (int j = 0; j < 4; ++j) code[j][r] = u[j];
    if constexpr (Format::kGroup16) {
      __m512 s, m;
      Format::scales(rows[r], s, m);
      scale[0][r] = _mm512_castps_si512(s);
      scale[1][r] = _mm512_castps_si512(_mm512_mul_ps(m, min));
    } else {
      scale[0][r] = _mm512_castps_si512(_mm512_mul_ps(Format::scales(rows[r]), only_min));
    }
  }
  std::byte* codes = reinterpret_cast<std::byte*>(panel.codes) + unit * 64 * kQuadBytes + half * 64;
  for (uint64_t j = 0; j < 4; ++j)
    store_transposed(code[j], codes + j * 16 * kQuadBytes, kQuadBytes);

  constexpr uint64_t kGroups = Format::kGroup16 ? 16 : 8;
  constexpr uint64_t kVector = kInt8PanelRows * sizeof(float);  // scales of one group
  std::byte* scales =
      reinterpret_cast<std::byte*>(panel.scales) + unit * kGroups * 2 * kVector + half * 64;
  if constexpr (Format::kGroup16) {
    store_transposed(scale[0], scales, 2 * kVector);
    store_transposed(scale[1], scales + kVector, 2 * kVector);
  } else {
    transpose(scale[0]);
    for (uint64_t g = 0; g < 8; ++g) {
      _mm512_store_si512(scales + g * 2 * kVector, scale[0][g]);
      _mm512_store_si512(scales + g * 2 * kVector + kVector, scale[0][8 + g]);
    }
  }
}

/// Up to 32 weight rows from `first`; lanes without a row repeat the last one.
template <class Format>
void unpack_panel(const MatmulJob& job, uint64_t first, uint64_t n_rows, const Panel& panel) {
  const uint64_t n_left = job.n_in % kInt8RowUnit;
  for (uint64_t half = 0; half < kVectors; ++half) {
    for (uint64_t unit = 0; unit < panel.n_units; ++unit) {
      const bool partial = n_left != 0 && unit + 1 == panel.n_units;
      uint8_t buffer[16][Format::kUnitBytes];
      const uint8_t *rows[16], *fetched[16];
      const uint64_t ahead = unit + kUnitsAhead;
      // Behind a row's end its successor in this lane comes next, 16 rows on.
      const uint64_t jump =
          ahead / panel.n_units * 16 * job.row_bytes + ahead % panel.n_units * Format::kUnitBytes;
      for (uint64_t r = 0; r < 16; ++r) {
        const uint64_t lane = half * 16 + r, row = lane < n_rows ? lane : n_rows - 1;
        rows[r] = reinterpret_cast<const uint8_t*>(job.w) + (first + row) * job.row_bytes;
        fetched[r] = rows[r] + jump;
        rows[r] += unit * Format::kUnitBytes;
        if (partial) rows[r] = padded_unit<Format>(rows[r], n_left, buffer[r]);
      }
      for (const uint8_t* row : fetched) {
        for (uint32_t line = 0; line < Format::kUnitBytes; line += 64) {
          _mm_prefetch(reinterpret_cast<const char*>(row + line), _MM_HINT_T0);
        }
      }
      unpack_unit<Format>(rows, panel, unit, half);
    }
  }
}

/// The panel times kRows activation rows.
template <bool kGroup16, int kRows>
inline void multiply(const Panel& panel, const int8_t* const* q, __m512 (&sum)[kVectors][kRows]) {
  constexpr uint64_t kGroups = kGroup16 ? 16 : 8, kQuads = 64 / kGroups;
  const std::byte* w = reinterpret_cast<const std::byte*>(panel.codes);
  const float* s = panel.scales;
  const uint64_t k = panel.n_units * kInt8RowUnit;
  for (int v = 0; v < kVectors; ++v) {
    for (int r = 0; r < kRows; ++r) sum[v][r] = _mm512_setzero_ps();
  }
  for (uint64_t group = 0; group < panel.n_units * kGroups; ++group, s += 2 * kInt8PanelRows) {
    __m512i dot[kVectors][kRows];
    for (int v = 0; v < kVectors; ++v) {
      for (int r = 0; r < kRows; ++r) dot[v][r] = _mm512_setzero_si512();
    }
    const uint64_t at = group * kQuads * 4;
#pragma GCC unroll 8
    for (uint64_t quad = 0; quad < kQuads; ++quad, w += kQuadBytes) {
      const __m512i w0 = _mm512_load_si512(w), w1 = _mm512_load_si512(w + 64);
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
        int four;
        std::memcpy(&four, q[r] + at + quad * 4, sizeof four);
        const __m512i x = _mm512_set1_epi32(four);
        dot[0][r] = _mm512_dpbusd_epi32(dot[0][r], w0, x);
        dot[1][r] = _mm512_dpbusd_epi32(dot[1][r], w1, x);
      }
    }
    const uint64_t unit = group / kGroups, in_unit = group % kGroups;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const float* meta = reinterpret_cast<const float*>(q[r] + k) + unit * kInt8UnitFloats;
      const __m512 d = _mm512_set1_ps(meta[kGroup16 ? in_unit / 2 : in_unit]);
      const __m512 x_sum = _mm512_set1_ps(meta[(kGroup16 ? 16 : 8) + in_unit]);
      for (int v = 0; v < kVectors; ++v) {
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(s + 16 * v), d);
        sum[v][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[v][r]), scale, sum[v][r]);
        sum[v][r] = _mm512_fmadd_ps(_mm512_load_ps(s + kInt8PanelRows + 16 * v), x_sum, sum[v][r]);
      }
    }
  }
}

/// Byte i of every lane of 32 bits, in the lowest place.
inline __m512i byte_of_lanes(__m512i v, uint64_t i) {
  alignas(16) static constexpr int8_t kFrom[4][16] = {
      {0, -1, -1, -1, 4, -1, -1, -1, 8, -1, -1, -1, 12, -1, -1, -1},
      {1, -1, -1, -1, 5, -1, -1, -1, 9, -1, -1, -1, 13, -1, -1, -1},
      {2, -1, -1, -1, 6, -1, -1, -1, 10, -1, -1, -1, 14, -1, -1, -1},
      {3, -1, -1, -1, 7, -1, -1, -1, 11, -1, -1, -1, 15, -1, -1, -1}};
  const __m128i from = _mm_load_si128(reinterpret_cast<const __m128i*>(kFrom[i]));
  return _mm512_shuffle_epi8(v, _mm512_broadcast_i32x4(from));
}

/// Adds the products of a row's peaks with the codes; those with the minima are in the row's sums.
template <bool kGroup16, int kRows>
inline void add_peaks(const Panel& panel, const int8_t* const* q, __m512 (&sum)[kVectors][kRows]) {
  constexpr uint64_t kGroup = kGroup16 ? 16 : 32;
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
    const Int8Peaks& peaks = peaks_of(q[r], panel.n_units);
    __m512 row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = sum[v][r];
    for (uint32_t i = 0; i < peaks.n; ++i) {
      const uint64_t at = peaks.at[i];
      const uint8_t* w = panel.codes + at / 4 * kQuadBytes;
      const float* s = panel.scales + at / kGroup * 2 * kInt8PanelRows;
      const __m512 x = _mm512_set1_ps(peaks.x[i]);
      for (int v = 0; v < kVectors; ++v) {
        const __m512i code = byte_of_lanes(_mm512_load_si512(w + 64 * v), at % 4);
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(s + 16 * v), x);
        row[v] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scale, row[v]);
      }
    }
    for (int v = 0; v < kVectors; ++v) sum[v][r] = row[v];
  }
}

template <bool kGroup16, int kRows>
inline void tile(const MatmulJob& job, const Panel& panel, uint32_t r0, uint64_t first,
                 uint64_t n_out) {
  const int8_t* q[kRows];
  for (uint32_t r = 0; r < kRows; ++r) {
    const uint64_t id = job.ids != nullptr ? job.ids[r0 + r] : r0 + r;
    q[r] = reinterpret_cast<const int8_t*>(job.x + id * job.x_stride);
  }
  __m512 sum[kVectors][kRows];
  multiply<kGroup16, kRows>(panel, q, sum);
  add_peaks<kGroup16, kRows>(panel, q, sum);
  for (int v = 0; v < kVectors; ++v) {
    const uint64_t at = 16 * static_cast<uint64_t>(v);
    if (at >= n_out) break;
    const auto mask = static_cast<__mmask16>(n_out - at >= 16 ? 0xFFFFu : (1u << (n_out - at)) - 1);
    for (uint32_t r = 0; r < kRows; ++r) {
      _mm512_mask_storeu_ps(job.y + (r0 + r) * job.y_stride + first + at, mask, sum[v][r]);
    }
  }
}

template <bool kGroup16>
void any_tile(const MatmulJob& job, const Panel& panel, uint32_t height, uint32_t r0,
              uint64_t first, uint64_t n_out) {
  switch (height) {
    case 1:
      return tile<kGroup16, 1>(job, panel, r0, first, n_out);
    case 2:
      return tile<kGroup16, 2>(job, panel, r0, first, n_out);
    case 3:
      return tile<kGroup16, 3>(job, panel, r0, first, n_out);
    case 4:
      return tile<kGroup16, 4>(job, panel, r0, first, n_out);
    case 5:
      return tile<kGroup16, 5>(job, panel, r0, first, n_out);
    default:
      return tile<kGroup16, kRowTile>(job, panel, r0, first, n_out);
  }
}

template <class Format>
void panel_job(const MatmulJob& job) {
  constexpr bool kGroup16 = Format::kGroup16;
  Panel panel;
  panel.n_units = (job.n_in + kInt8RowUnit - 1) / kInt8RowUnit;
  panel.codes = reinterpret_cast<uint8_t*>(job.scratch);
  panel.scales =
      reinterpret_cast<float*>(job.scratch + panel.n_units * kInt8RowUnit * kInt8PanelRows);
  for (uint64_t o = 0; o < job.n_out; o += kInt8PanelRows) {
    const uint64_t n_out = job.n_out - o < kInt8PanelRows ? job.n_out - o : kInt8PanelRows;
    unpack_panel<Format>(job, o, n_out, panel);
    // Tiles of almost equal height: the rows of a low tile wait for each other's latency.
    const uint32_t n_tiles = (job.n_rows + kRowTile - 1) / kRowTile;
    for (uint32_t t = 0, r = 0; t < n_tiles; ++t) {
      const uint32_t height = (job.n_rows + t) / n_tiles;
      any_tile<kGroup16>(job, panel, height, r, o, n_out);
      r += height;
    }
  }
}

}  // namespace

MatmulJobFn int8_panel_avx512(GgmlType type) {
  return with_format(type, MatmulJobFn{nullptr},
                     [](auto format) -> MatmulJobFn { return panel_job<decltype(format)>; });
}

}  // namespace sharpi::cpu
