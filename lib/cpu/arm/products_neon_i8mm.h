// SPDX-License-Identifier: MIT
// Products of signed bytes by products of matrices (SMMLA): two rows of eight with two rows of
// eight, four sums. Few rows are multiplied by dot products. Sums are those of products_neon.h.
// Included by one kernel file at a time; everything has internal linkage.
// Thread rule: pure functions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "cpu/flatten.h"

namespace sharpi::cpu {
namespace {

struct Products {
  static constexpr int kRowTile = 4;

  static int32x4_t dot_16(int32x4_t acc, int8x16_t a, int8x16_t b) { return vdotq_s32(acc, a, b); }

  // Panels of 8 weight rows: [k/8][8 rows][8].
  static constexpr uint64_t panel_index(uint64_t at, uint64_t row) {
    return at / 8 * 64 + row * 8 + at % 8;
  }
  /// 16 codes of each of four rows, `first` being 0 or 4, to their places in 128 bytes of a panel.
  static void store_panel(const int8x16_t* rows, uint64_t first, int8_t* to) {
    for (int i = 0; i < 4; i += 2) {
      const int64x2_t a = vreinterpretq_s64_s8(rows[i]), b = vreinterpretq_s64_s8(rows[i + 1]);
      int8_t* const at = to + 8 * (static_cast<int>(first) + i);
      vst1q_s8(at, vreinterpretq_s8_s64(vzip1q_s64(a, b)));
      vst1q_s8(at + 64, vreinterpretq_s8_s64(vzip2q_s64(a, b)));
    }
  }
  /// Activation rows are paired as the weights are; the last of an odd number with itself.
  template <class Format, int kRows>
  SHARPI_FLATTEN static void group(const int8_t* w, const int8_t* const* q,
                                   int32x4_t (&dot)[kRows][2]) {
    constexpr int kPairs = (kRows + 1) / 2;
    int32x4_t sums[kPairs][4];
    SHARPI_UNROLL(2)
    for (int p = 0; p < kPairs; ++p) {
      SHARPI_UNROLL(4)
      for (int j = 0; j < 4; ++j) sums[p][j] = vdupq_n_s32(0);
    }
    SHARPI_UNROLL(2)
    for (int i = 0; i < (Format::kGroup16 ? 1 : 2); ++i) {
      int8x16_t x[kPairs][2];
      SHARPI_UNROLL(2)
      for (int p = 0; p < kPairs; ++p) {
        const int8_t* second = q[2 * p + 1 < kRows ? 2 * p + 1 : 2 * p];
        const int64x2_t a = vreinterpretq_s64_s8(vld1q_s8(q[2 * p] + 16 * i));
        const int64x2_t b = vreinterpretq_s64_s8(vld1q_s8(second + 16 * i));
        x[p][0] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
        x[p][1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
      }
      SHARPI_UNROLL(2)
      for (int oct = 0; oct < 2; ++oct) {
        SHARPI_UNROLL(4)
        for (int j = 0; j < 4; ++j) {
          const int8x16_t codes = vld1q_s8(w + 128 * i + 64 * oct + 16 * j);
          SHARPI_UNROLL(2)
          for (int p = 0; p < kPairs; ++p) sums[p][j] = vmmlaq_s32(sums[p][j], codes, x[p][oct]);
        }
      }
    }
    SHARPI_UNROLL(2)
    for (int p = 0; p < kPairs; ++p) {
      SHARPI_UNROLL(2)
      for (int j = 0; j < 2; ++j) {
        dot[2 * p][j] = vuzp1q_s32(sums[p][2 * j], sums[p][2 * j + 1]);
        if (2 * p + 1 < kRows) {
          dot[2 * p + 1][j] = vuzp2q_s32(sums[p][2 * j], sums[p][2 * j + 1]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace sharpi::cpu
