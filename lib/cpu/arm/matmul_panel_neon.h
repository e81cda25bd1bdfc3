// SPDX-License-Identifier: MIT
// Products with int8 activations over panels in NEON: weight rows are unpacked once, 8 at a time,
// to byte codes in the order that the Products of products_neon*.h want, with scales and minima
// [group] [8 rows], and multiplied with all activation rows, one output per lane.
//   y = sum_g s_g * d_g * (sum_i code_i * q_i) + m_g * (d_g * sum_i q_i), groups in order,
//       + sum over the row's peaks s_g * code_i * x_i
// Everything has internal linkage. Thread rule: a job is run by one thread with scratch of its own.
#pragma once

#include <arm_neon.h>

#include <algorithm>
#include <cstring>

#include "cpu/arm/quant_neon_k.h"
#include "cpu/flatten.h"
#include "cpu/matmul_kernels.h"

namespace sharpi::cpu {
namespace {

constexpr uint64_t kLanes = 8, kParts = kInt8PanelRows / kLanes;
constexpr uint64_t kScaleFloats = 2 * kLanes;  // of a group: scales, then minima

/// 8 weight rows in scratch.
struct Part {
  int8_t* codes = nullptr;
  float* scales = nullptr;
};
struct Panel {
  std::byte* scratch = nullptr;
  uint64_t n_units = 0;
  Part part(uint64_t i) const {
    const uint64_t k = n_units * kInt8RowUnit;
    auto* codes = reinterpret_cast<int8_t*>(scratch);
    auto* scales = reinterpret_cast<float*>(scratch + k * kInt8PanelRows);
    return {codes + i * k * kLanes, scales + i * (k / 16) * kScaleFloats};
  }
};

/// Lane j of the four vectors, together, to to + j * kScaleFloats.
inline void store_transposed(const float32x4_t* v, float* to) {
  const float32x4_t even[2] = {vtrn1q_f32(v[0], v[1]), vtrn1q_f32(v[2], v[3])};
  const float32x4_t odd[2] = {vtrn2q_f32(v[0], v[1]), vtrn2q_f32(v[2], v[3])};
  vst1q_f32(to, vcombine_f32(vget_low_f32(even[0]), vget_low_f32(even[1])));
  vst1q_f32(to + kScaleFloats, vcombine_f32(vget_low_f32(odd[0]), vget_low_f32(odd[1])));
  vst1q_f32(to + 2 * kScaleFloats, vcombine_f32(vget_high_f32(even[0]), vget_high_f32(even[1])));
  vst1q_f32(to + 3 * kScaleFloats, vcombine_f32(vget_high_f32(odd[0]), vget_high_f32(odd[1])));
}

/// 128 codes of four rows.
template <class Format, uint32_t kHalf>
inline void unpack_half(const uint8_t* const* rows, uint64_t first, int8_t* to) {
  int8x16_t code[4][8];
  for (int r = 0; r < 4; ++r) Format::template codes<kHalf>(rows[r], code[r]);
  for (int i = 0; i < 8; ++i) {
    const int8x16_t sixteen[4] = {code[0][i], code[1][i], code[2][i], code[3][i]};
    Products::store_panel(sixteen, first, to + 128 * i);
  }
}

/// 256 elements of four rows, `first` of a part being 0 or 4.
template <class Format>
inline void unpack_unit(const uint8_t* const* rows, uint64_t first, const Part& part,
                        uint64_t unit) {
  int8_t* codes = part.codes + unit * kInt8RowUnit * kLanes;
  unpack_half<Format, 0>(rows, first, codes);
  unpack_half<Format, 1>(rows, first, codes + 128 * kLanes);
  constexpr uint64_t kGroups = Format::kGroup16 ? 16 : 8;
  float* scales = part.scales + unit * kGroups * kScaleFloats + first;
  Scales s[4];
  for (int r = 0; r < 4; ++r) Format::scales(rows[r], s[r]);
  for (uint64_t i = 0; i < kGroups / 4; ++i, scales += 4 * kScaleFloats) {
    const float32x4_t four[4] = {s[0].s[i], s[1].s[i], s[2].s[i], s[3].s[i]};
    store_transposed(four, scales);
    if constexpr (!Format::kSigned) {
      const float32x4_t least[4] = {s[0].m[i], s[1].m[i], s[2].m[i], s[3].m[i]};
      store_transposed(least, scales + kLanes);
    }
  }
}

/// 8 weight rows from `first`; lanes without a row repeat the last one.
template <class Format>
void unpack_part(const MatmulJob& job, uint64_t first, const Panel& panel, const Part& part) {
  const uint64_t n_left = job.n_in % kInt8RowUnit;
  for (uint64_t four = 0; four < kLanes; four += 4) {
    for (uint64_t unit = 0; unit < panel.n_units; ++unit) {
      const bool partial = n_left != 0 && unit + 1 == panel.n_units;
      uint8_t buffer[4][Format::kUnitBytes];
      const uint8_t* rows[4];
      for (uint64_t r = 0; r < 4; ++r) {
        const uint64_t row = std::min(first + four + r, job.n_out - 1);
        rows[r] = reinterpret_cast<const uint8_t*>(job.w) + row * job.row_bytes +
                  unit * Format::kUnitBytes;
        if (partial) rows[r] = padded_unit<Format>(rows[r], n_left, buffer[r]);
      }
      unpack_unit<Format>(rows, four, part, unit);
    }
  }
}

/// A part times kRows activation rows of k elements.
template <class Format, int kRows>
inline void multiply(const Part& part, uint64_t k, const int8_t* const* rows,
                     float32x4_t (&sum)[kRows][2]) {
  constexpr uint64_t kGroup = Format::kGroup16 ? 16 : 32, kGroups = kInt8RowUnit / kGroup;
  const int8_t* w = part.codes;
  const float* s = part.scales;
  const int8_t* q[kRows];
  for (int r = 0; r < kRows; ++r) {
    q[r] = rows[r];
    sum[r][0] = sum[r][1] = vdupq_n_f32(0.0f);
  }
  for (uint64_t group = 0; group < k / kGroup; ++group, s += kScaleFloats, w += kGroup * kLanes) {
    int32x4_t dot[kRows][2];
    Products::group<Format, kRows>(w, q, dot);
    const uint64_t unit = group / kGroups, in_unit = group % kGroups;
    SHARPI_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      const float* meta = reinterpret_cast<const float*>(rows[r] + k) + unit * kInt8UnitFloats;
      const float d = meta[Format::kGroup16 ? in_unit / 2 : in_unit];
      SHARPI_UNROLL(2)
      for (int j = 0; j < 2; ++j) {
        const float32x4_t scale = vmulq_n_f32(vld1q_f32(s + 4 * j), d);
        sum[r][j] = vfmaq_f32(sum[r][j], vcvtq_f32_s32(dot[r][j]), scale);
        if constexpr (!Format::kSigned) {
          const float x_sum = meta[(Format::kGroup16 ? 16 : 8) + in_unit];
          sum[r][j] = vfmaq_n_f32(sum[r][j], vld1q_f32(s + kLanes + 4 * j), x_sum);
        }
      }
      q[r] += kGroup;
    }
  }
}

/// Adds the products of a row's peaks with the codes; those with the minima are in the row's sums.
template <class Format>
inline void add_panel_peaks(const Part& part, const Int8Peaks& peaks, float32x4_t* sum) {
  constexpr uint64_t kGroup = Format::kGroup16 ? 16 : 32;
  for (uint32_t i = 0; i < peaks.n; ++i) {
    const uint64_t at = peaks.at[i];
    float code[kLanes];
    for (uint64_t r = 0; r < kLanes; ++r) code[r] = part.codes[Products::panel_index(at, r)];
    const float* s = part.scales + at / kGroup * kScaleFloats;
    for (int j = 0; j < 2; ++j) {
      const float32x4_t scale = vmulq_n_f32(vld1q_f32(s + 4 * j), peaks.x[i]);
      sum[j] = vfmaq_f32(sum[j], vld1q_f32(code + 4 * j), scale);
    }
  }
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
    float32x4_t sum[kRows][2];
    multiply<Format, kRows>(panel.part(i), panel.n_units * kInt8RowUnit, rows, sum);
    SHARPI_UNROLL(4)
    for (uint32_t r = 0; r < kRows; ++r) {
      add_panel_peaks<Format>(panel.part(i), peaks_of(rows[r], panel.n_units), sum[r]);
      float* y = job.y + (r0 + r) * job.y_stride + o;
      float lanes[kLanes];
      float* to = end - o >= kLanes ? y : lanes;
      vst1q_f32(to, sum[r][0]);
      vst1q_f32(to + 4, sum[r][1]);
      if (to == lanes) std::copy_n(lanes, end - o, y);
    }
  }
}

template <class Format>
void panel_job(const MatmulJob& job) {
  const Panel panel{job.scratch, (job.n_in + kInt8RowUnit - 1) / kInt8RowUnit};
  constexpr int kTile = Products::kRowTile;
  for (uint64_t o = 0; o < job.n_out; o += kInt8PanelRows) {
    for (uint64_t i = 0; i < kParts && o + i * kLanes < job.n_out; ++i) {
      unpack_part<Format>(job, o + i * kLanes, panel, panel.part(i));
    }
    uint32_t r = 0;
    for (; r + kTile <= job.n_rows; r += kTile) tile<Format, kTile>(job, panel, r, o);
    if constexpr (kTile > 2) {
      if (r + 2 <= job.n_rows) {
        tile<Format, 2>(job, panel, r, o);
        r += 2;
      }
    }
    if (r < job.n_rows) tile<Format, 1>(job, panel, r, o);
  }
}

}  // namespace
}  // namespace sharpi::cpu
