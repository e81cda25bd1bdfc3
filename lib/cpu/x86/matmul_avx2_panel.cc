// SPDX-License-Identifier: MIT
// Products with int8 activations over panels in AVX2: weight rows are unpacked once, 8 at a time,
// to byte codes [k/4][8 rows][4] with scales and minima [group][8 rows], and multiplied with all
// activation rows, one output per lane, 4 activation rows at a time.
//   y = sum_g s_g * d_g * (sum_i code_i * q_i) + m_g * (d_g * sum_i q_i), groups in order,
//       + sum over the row's peaks s_g * code_i * x_i
// Bound: vpmaddubsw, and the load that brings four elements of an activation row to all lanes.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "cpu/flatten.h"
#include "cpu/matmul_kernels.h"
#include "cpu/x86/kernel_tables.h"
#include "cpu/x86/quant_avx2_k.h"

namespace sharpi::cpu {
namespace {

constexpr int kRowTile = 4;  // 4 sums of pairs, 4 of a group and 4 of a row in 16 registers
constexpr uint64_t kLanes = 8, kParts = kInt8PanelRows / kLanes;
constexpr uint64_t kQuadBytes = kLanes * 4;    // four elements of all rows of a part
constexpr uint64_t kScaleFloats = 2 * kLanes;  // of a group: scales, then minima

/// How many products of one lane fit into 16 bits, in pairs: |code| * 127 * 2 for each.
template <class Format>
constexpr int kFold = [] {
  constexpr int kQuads = Format::kGroup16 ? 4 : 8;
  int fold = kQuads;
  while (fold * Format::kMostCode * 127 * 2 > INT16_MAX) fold /= 2;
  return fold;
}();

/// 8 weight rows in scratch.
struct Part {
  uint8_t* codes = nullptr;
  float* scales = nullptr;
};
struct Panel {
  std::byte* scratch = nullptr;
  uint64_t n_units = 0;
  Part part(uint64_t i) const {
    const uint64_t k = n_units * kInt8RowUnit;
    uint8_t* codes = reinterpret_cast<uint8_t*>(scratch);
    float* scales = reinterpret_cast<float*>(scratch + k * kInt8PanelRows);
    return {codes + i * k * kLanes, scales + i * (k / 16) * kScaleFloats};
  }
};

/// Lane j of vector i becomes lane i of vector j.
inline void transpose(__m256i* v) {
  __m256i t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
    v[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
  }
}

/// Stores lane j of the 8 vectors together at to + j * stride.
inline void store_transposed(__m256i* v, void* to, uint64_t stride) {
  transpose(v);
  for (uint64_t j = 0; j < 8; ++j) {
    _mm256_store_si256(reinterpret_cast<__m256i*>(static_cast<char*>(to) + j * stride), v[j]);
  }
}

/// 256 elements of 8 rows.
template <class Format>
inline void unpack_unit(const uint8_t* const* rows, const Part& part, uint64_t unit) {
  constexpr uint64_t kGroups = Format::kGroup16 ? 16 : 8;
  __m256i code[8][8], scale[2][8], min[2][8];
  for (int r = 0; r < 8; ++r) {
    __m256i u[8];
    Format::codes(rows[r], u);
    for (int g = 0; g < 8; ++g) code[g][r] = u[g];
    Scales s;
    Format::scales(rows[r], s);
    for (int h = 0; h < (Format::kGroup16 ? 2 : 1); ++h) {
      scale[h][r] = _mm256_castps_si256(s.s[h]);
      if constexpr (!Format::kSigned) min[h][r] = _mm256_castps_si256(s.m[h]);
    }
  }
  uint8_t* codes = part.codes + unit * 64 * kQuadBytes;
  for (int g = 0; g < 8; ++g, codes += 8 * kQuadBytes) store_transposed(code[g], codes, kQuadBytes);
  float* scales = part.scales + unit * kGroups * kScaleFloats;
  constexpr uint64_t kStride = kScaleFloats * sizeof(float);
  for (int h = 0; h < (Format::kGroup16 ? 2 : 1); ++h, scales += 8 * kScaleFloats) {
    store_transposed(scale[h], scales, kStride);
    if constexpr (!Format::kSigned) store_transposed(min[h], scales + kLanes, kStride);
  }
}

/// 8 weight rows from `first`; lanes without a row repeat the last one.
template <class Format>
void unpack_part(const MatmulJob& job, uint64_t first, const Panel& panel, const Part& part) {
  const uint64_t n_left = job.n_in % kInt8RowUnit;
  const uint8_t* from[kLanes];
  for (uint64_t r = 0; r < kLanes; ++r) {
    from[r] = reinterpret_cast<const uint8_t*>(job.w) +
              std::min(first + r, job.n_out - 1) * job.row_bytes;
  }
  for (uint64_t unit = 0; unit < panel.n_units; ++unit) {
    const bool partial = n_left != 0 && unit + 1 == panel.n_units;
    uint8_t buffer[kLanes][Format::kUnitBytes];
    const uint8_t* rows[kLanes];
    for (uint64_t r = 0; r < kLanes; ++r) {
      rows[r] = from[r] + unit * Format::kUnitBytes;
      for (uint32_t line = 0; line < Format::kUnitBytes; line += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(rows[r] + 2 * Format::kUnitBytes + line),
                     _MM_HINT_T0);
      }
      if (partial) rows[r] = padded_unit<Format>(rows[r], n_left, buffer[r]);
    }
    unpack_unit<Format>(rows, part, unit);
  }
}

/// Sums of one group: a lane for each weight row, of kRows activation rows at q[r].
template <class Format, int kRows>
SHARPI_FLATTEN void add_products(const uint8_t* w, const int8_t* const* q, __m256i* dot) {
  constexpr int kQuads = Format::kGroup16 ? 4 : 8;
  const __m256i ones = _mm256_set1_epi16(1);
  SHARPI_UNROLL(8)
  for (int quad = 0; quad < kQuads; quad += kFold<Format>) {
    __m256i pairs[kRows];
    SHARPI_UNROLL(8)
    for (int i = 0; i < kFold<Format>; ++i) {
      const __m256i code = load_32(w + static_cast<uint64_t>(quad + i) * kQuadBytes);
      const __m256i magnitude = Format::kSigned ? _mm256_abs_epi8(code) : code;
      SHARPI_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        int four;
        std::memcpy(&four, q[r] + 4 * (quad + i), sizeof four);
        __m256i x = _mm256_set1_epi32(four);
        if constexpr (Format::kSigned) x = _mm256_sign_epi8(x, code);
        const __m256i p = _mm256_maddubs_epi16(magnitude, x);
        pairs[r] = i == 0 ? p : _mm256_add_epi16(pairs[r], p);
      }
    }
    SHARPI_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const __m256i sums = _mm256_madd_epi16(pairs[r], ones);
      dot[r] = quad == 0 ? sums : _mm256_add_epi32(dot[r], sums);
    }
  }
}

/// A part times kRows activation rows of k elements.
template <class Format, int kRows>
inline void multiply(const Part& part, uint64_t k, const int8_t* const* rows, __m256* sum) {
  constexpr uint64_t kGroup = Format::kGroup16 ? 16 : 32, kGroups = kInt8RowUnit / kGroup;
  const uint8_t* w = part.codes;
  const float* s = part.scales;
  const int8_t* q[kRows];
  for (int r = 0; r < kRows; ++r) {
    q[r] = rows[r];
    sum[r] = _mm256_setzero_ps();
  }
  for (uint64_t group = 0; group < k / kGroup; ++group, s += kScaleFloats) {
    __m256i dot[kRows];
    add_products<Format, kRows>(w, q, dot);
    w += kGroup * kLanes;
    const __m256 scale = _mm256_load_ps(s);
    const uint64_t unit = group / kGroups, in_unit = group % kGroups;
    SHARPI_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const float* meta = reinterpret_cast<const float*>(rows[r] + k) + unit * kInt8UnitFloats;
      const __m256 d = _mm256_set1_ps(meta[Format::kGroup16 ? in_unit / 2 : in_unit]);
      sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), _mm256_mul_ps(scale, d), sum[r]);
      if constexpr (!Format::kSigned) {
        const __m256 x_sum = _mm256_set1_ps(meta[(Format::kGroup16 ? 16 : 8) + in_unit]);
        sum[r] = _mm256_fmadd_ps(_mm256_load_ps(s + kLanes), x_sum, sum[r]);
      }
      q[r] += kGroup;
    }
  }
}

/// Adds the products of a row's peaks with the codes; those with the minima are in the row's sums.
template <class Format>
inline __m256 add_peaks(const Part& part, const Int8Peaks& peaks, __m256 sum) {
  constexpr uint64_t kGroup = Format::kGroup16 ? 16 : 32;
  for (uint32_t i = 0; i < peaks.n; ++i) {
    const uint64_t at = peaks.at[i];
    // The code's byte moves to the top of its lane and down again, with its sign if it has one.
    const __m128i up = _mm_cvtsi32_si128(static_cast<int>(24 - 8 * (at % 4)));
    const __m256i top = _mm256_sll_epi32(load_32(part.codes + at / 4 * kQuadBytes), up);
    const __m256i code = Format::kSigned ? _mm256_srai_epi32(top, 24) : _mm256_srli_epi32(top, 24);
    const float* s = part.scales + at / kGroup * kScaleFloats;
    const __m256 scale = _mm256_mul_ps(_mm256_load_ps(s), _mm256_set1_ps(peaks.x[i]));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(code), scale, sum);
  }
  return sum;
}

/// Activation rows r0.. with the whole panel, whose first output is `first`: the rows stay in the
/// first level cache meanwhile.
template <class Format, int kRows>
void tile(const MatmulJob& job, const Panel& panel, uint32_t r0, uint64_t first) {
  const int8_t* rows[kRows];
  for (uint32_t r = 0; r < kRows; ++r) {
    const uint64_t id = job.ids != nullptr ? job.ids[r0 + r] : r0 + r;
    rows[r] = reinterpret_cast<const int8_t*>(job.x + id * job.x_stride);
  }
  const uint64_t end = std::min(first + kInt8PanelRows, job.n_out);
  for (uint64_t o = first, i = 0; o < end; o += kLanes, ++i) {
    __m256 sum[kRows];
    multiply<Format, kRows>(panel.part(i), panel.n_units * kInt8RowUnit, rows, sum);
    SHARPI_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      sum[r] = add_peaks<Format>(panel.part(i), peaks_of(rows[r], panel.n_units), sum[r]);
    }
    for (uint32_t r = 0; r < kRows; ++r) {
      float* y = job.y + (r0 + r) * job.y_stride + o;
      if (end - o >= kLanes) {
        _mm256_storeu_ps(y, sum[r]);
      } else {
        alignas(32) float lanes[kLanes];
        _mm256_store_ps(lanes, sum[r]);
        std::copy_n(lanes, end - o, y);
      }
    }
  }
}

template <class Format>
void panel_job(const MatmulJob& job) {
  const Panel panel{job.scratch, (job.n_in + kInt8RowUnit - 1) / kInt8RowUnit};
  for (uint64_t o = 0; o < job.n_out; o += kInt8PanelRows) {
    for (uint64_t i = 0; i < kParts && o + i * kLanes < job.n_out; ++i) {
      unpack_part<Format>(job, o + i * kLanes, panel, panel.part(i));
    }
    uint32_t r = 0;
    for (; r + kRowTile <= job.n_rows; r += kRowTile) tile<Format, kRowTile>(job, panel, r, o);
    switch (job.n_rows - r) {
      case 1:
        tile<Format, 1>(job, panel, r, o);
        break;
      case 2:
        tile<Format, 2>(job, panel, r, o);
        break;
      case 3:
        tile<Format, 3>(job, panel, r, o);
        break;
      default:
        break;
    }
  }
}

}  // namespace

MatmulJobFn int8_panel_avx2(GgmlType type) {
  return with_format(type, MatmulJobFn{nullptr},
                     [](auto format) -> MatmulJobFn { return panel_job<decltype(format)>; });
}

}  // namespace sharpi::cpu
