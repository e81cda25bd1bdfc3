// SPDX-License-Identifier: MIT
// Products of signed bytes by dot products of four (SDOT). Sums are those of products_neon.h.
// Included by one kernel file at a time; everything has internal linkage.
// Thread rule: pure functions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "cpu/arm/quad_panels_neon.h"
#include "cpu/flatten.h"

namespace sharpi::cpu {
namespace {

struct Products : QuadPanels {
  static constexpr int kRowTile = 4;  // 8 sums of a group, 8 of rows, 4 activations, 2 weights

  static int32x4_t dot_16(int32x4_t acc, int8x16_t a, int8x16_t b) { return vdotq_s32(acc, a, b); }
  /// A lane of an activation row's vector, four elements, goes to all lanes by itself.
  template <class Format, int kRows>
  SHARPI_FLATTEN static void group(const int8_t* w, const int8_t* const* q,
                                   int32x4_t (&dot)[kRows][2]) {
    SHARPI_UNROLL(4)
    for (int r = 0; r < kRows; ++r) dot[r][0] = dot[r][1] = vdupq_n_s32(0);
    SHARPI_UNROLL(2)
    for (int i = 0; i < (Format::kGroup16 ? 1 : 2); ++i, w += 128) {
      int8x16_t x[kRows];
      SHARPI_UNROLL(4)
      for (int r = 0; r < kRows; ++r) x[r] = vld1q_s8(q[r] + 16 * i);
      quad<0, kRows>(w, x, dot);
      quad<1, kRows>(w, x, dot);
      quad<2, kRows>(w, x, dot);
      quad<3, kRows>(w, x, dot);
    }
  }

 private:
  template <int kQuad, int kRows>
  SHARPI_FLATTEN static void quad(const int8_t* w, const int8x16_t* x, int32x4_t (&dot)[kRows][2]) {
    const int8x16_t low = vld1q_s8(w + 32 * kQuad), high = vld1q_s8(w + 32 * kQuad + 16);
    SHARPI_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      dot[r][0] = vdotq_laneq_s32(dot[r][0], low, x[r], kQuad);
      dot[r][1] = vdotq_laneq_s32(dot[r][1], high, x[r], kQuad);
    }
  }
};

}  // namespace
}  // namespace sharpi::cpu
