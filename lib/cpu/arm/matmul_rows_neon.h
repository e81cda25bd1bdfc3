// SPDX-License-Identifier: MIT
// Row-dot products with int8 activations in NEON over the Products of products_neon*.h, for any
// number of rows in blocks of up to 4.
//   y = sum_g s_g * d_g * (sum_i code_i * q_i) + m_g * (d_g * sum_i q_i)
//       + sum over the row's peaks s_g * code_i * x_i
// A group's products are one whole number before they become a float, and groups are added in one
// order: a row's bits depend neither on the rows beside it nor on the set of instructions. Bound:
// the weights' bytes (1 row), the products (more). Everything has internal linkage. Thread rule: a
// job is run by one thread.
#pragma once

#include <arm_neon.h>

#include "cpu/arm/quant_neon_k.h"
#include "cpu/flatten.h"
#include "cpu/matmul_kernels.h"
// Behind the formats.
#include "cpu/generic/quant_elements.h"

namespace sharpi::cpu {
namespace {

/// A lane for the whole sum of each.
inline int32x4_t sums_of(const int32x4_t* v) {
  return vpaddq_s32(vpaddq_s32(v[0], v[1]), vpaddq_s32(v[2], v[3]));
}

/// acc += the groups of a half of a unit, four of 32 or eight of 16.
template <class Format>
SHARPI_FLATTEN void add_groups(const int8x16_t* code, const Scales& scales, uint32_t half,
                               const int8_t* q, const float* meta, float32x4_t* acc) {
  const int32x4_t zero = vdupq_n_s32(0);
  const float32x4_t d = vld1q_f32(meta + 4 * half);
  int32x4_t dots[8];
  if constexpr (Format::kGroup16) {
    SHARPI_UNROLL(8)
    for (int i = 0; i < 8; ++i) dots[i] = Products::dot_16(zero, code[i], vld1q_s8(q + 16 * i));
    SHARPI_UNROLL(2)
    for (uint32_t i = 0; i < 2; ++i) {
      const float32x4_t twice = i == 0 ? vzip1q_f32(d, d) : vzip2q_f32(d, d);
      const float32x4_t scale = vmulq_f32(scales.s[2 * half + i], twice);
      *acc = vfmaq_f32(*acc, vcvtq_f32_s32(sums_of(dots + 4 * i)), scale);
      if constexpr (!Format::kSigned) {
        const float32x4_t sums = vld1q_f32(meta + 16 + 8 * half + 4 * i);
        *acc = vfmaq_f32(*acc, scales.m[2 * half + i], sums);
      }
    }
  } else {
    SHARPI_UNROLL(4)
    for (int i = 0; i < 4; ++i) {
      const int32x4_t first = Products::dot_16(zero, code[2 * i], vld1q_s8(q + 32 * i));
      dots[i] = Products::dot_16(first, code[2 * i + 1], vld1q_s8(q + 32 * i + 16));
    }
    *acc = vfmaq_f32(*acc, vcvtq_f32_s32(sums_of(dots)), vmulq_f32(scales.s[half], d));
    if constexpr (!Format::kSigned) {
      *acc = vfmaq_f32(*acc, scales.m[half], vld1q_f32(meta + 8 + 4 * half));
    }
  }
}

/// acc[r][h]: sums of half h of the units.
template <class Format, int kRows>
SHARPI_FLATTEN void dot_unit(const uint8_t* p, const int8_t* const* q, const float* const* meta,
                             uint64_t unit, float32x4_t (&acc)[kRows][2]) {
  Scales scales;
  Format::scales(p, scales);
  const auto add = [&](uint32_t half, const int8x16_t* code) {
    SHARPI_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      add_groups<Format>(code, scales, half, q[r] + unit * kInt8RowUnit + 128 * half,
                         meta[r] + unit * kInt8UnitFloats, &acc[r][half]);
    }
  };
  int8x16_t code[8];
  Format::template codes<0>(p, code);
  add(0, code);
  Format::template codes<1>(p, code);
  add(1, code);
}

inline float sum_of(const float32x4_t* acc) {
  const float32x4_t four = vaddq_f32(acc[0], acc[1]);
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

template <class Format, int kRows>
void dot_rows(const MatmulJob& job, const int8_t* const* q, float* y) {
  const uint64_t n_units = job.n_in / kInt8RowUnit, n_left = job.n_in % kInt8RowUnit;
  const uint64_t k = (n_units + (n_left != 0)) * kInt8RowUnit;
  const float* meta[kRows];
  const Int8Peaks* peaks[kRows];
  for (int r = 0; r < kRows; ++r) {
    meta[r] = reinterpret_cast<const float*>(q[r] + k);
    peaks[r] = &peaks_of(q[r], k / kInt8RowUnit);
  }
  for (uint64_t o = 0; o < job.n_out; ++o) {
    const std::byte* weights = job.w + o * job.row_bytes;
    const auto* p = reinterpret_cast<const uint8_t*>(weights);
    float32x4_t acc[kRows][2];
    for (int r = 0; r < kRows; ++r) acc[r][0] = acc[r][1] = vdupq_n_f32(0.0f);
    for (uint64_t unit = 0; unit < n_units; ++unit, p += Format::kUnitBytes) {
      dot_unit<Format, kRows>(p, q, meta, unit, acc);
    }
    if (n_left != 0) {
      uint8_t buffer[Format::kUnitBytes];
      dot_unit<Format, kRows>(padded_unit<Format>(p, n_left, buffer), q, meta, n_units, acc);
    }
    for (int r = 0; r < kRows; ++r) {
      y[static_cast<uint64_t>(r) * job.y_stride + o] =
          add_peaks<Format>(sum_of(acc[r]), *peaks[r], weights, -Format::kOffset);
    }
  }
}

template <class Format>
void dot_job(const MatmulJob& job) {
  for (uint32_t r0 = 0; r0 < job.n_rows;) {
    const uint32_t left = job.n_rows - r0, n = left < 4 ? left : 4;
    const int8_t* q[4] = {};
    for (uint32_t r = 0; r < n; ++r) {
      const uint64_t id = job.ids != nullptr ? job.ids[r0 + r] : r0 + r;
      q[r] = reinterpret_cast<const int8_t*>(job.x + id * job.x_stride);
    }
    float* y = job.y + r0 * job.y_stride;
    switch (n) {
      case 4:
        dot_rows<Format, 4>(job, q, y);
        break;
      case 3:
        dot_rows<Format, 3>(job, q, y);
        break;
      case 2:
        dot_rows<Format, 2>(job, q, y);
        break;
      default:
        dot_rows<Format, 1>(job, q, y);
        break;
    }
    r0 += n;
  }
}

}  // namespace
}  // namespace sharpi::cpu
