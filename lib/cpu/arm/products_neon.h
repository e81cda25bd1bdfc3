// SPDX-License-Identifier: MIT
// Products of signed bytes with what every aarch64 processor has: a byte times a byte in 16 bits,
// two of which fit, whatever the codes are. Sums are whole numbers, so every set of instructions
// has the same. Included by one kernel file at a time; everything has internal linkage. Thread
// rule: pure functions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "cpu/arm/quad_panels_neon.h"
#include "cpu/flatten.h"

namespace sharpi::cpu {
namespace {

struct Products : QuadPanels {
  /// Activation rows that a panel is multiplied with at once: sums of pairs take many registers.
  static constexpr int kRowTile = 2;

  /// acc plus 4 sums of 4 products each. Which products make a lane is the set's own.
  static int32x4_t dot_16(int32x4_t acc, int8x16_t a, int8x16_t b) {
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    return vpadalq_s16(acc, vmlal_high_s8(low, a, b));
  }
  /// How many products of one lane fit into 16 bits, in pairs: |code| * 127 for each.
  template <class Format>
  static constexpr int kFold = [] {
    constexpr int kQuads = Format::kGroup16 ? 4 : 8;
    int fold = kQuads;
    while (fold * Format::kMostCode * 127 > INT16_MAX) fold /= 2;
    return fold;
  }();
  /// Sums of one group: a lane for each of 8 weight rows, of kRows activation rows at q[r].
  template <class Format, int kRows>
  SHARPI_FLATTEN static void group(const int8_t* w, const int8_t* const* q,
                                   int32x4_t (&dot)[kRows][2]) {
    constexpr int kQuads = Format::kGroup16 ? 4 : 8;
    SHARPI_UNROLL(8)
    for (int quad = 0; quad < kQuads; quad += kFold<Format>) {
      int16x8_t sums[kRows][4];
      SHARPI_UNROLL(8)
      for (int i = 0; i < kFold<Format>; ++i) {
        const int8x16_t low = vld1q_s8(w + 32 * (quad + i));
        const int8x16_t high = vld1q_s8(w + 32 * (quad + i) + 16);
        SHARPI_UNROLL(4)
        for (int r = 0; r < kRows; ++r) {
          const auto* four = reinterpret_cast<const int32_t*>(q[r] + 4 * (quad + i));
          const int8x16_t x = vreinterpretq_s8_s32(vld1q_dup_s32(four));
          multiply(low, x, i == 0, sums[r]);
          multiply(high, x, i == 0, sums[r] + 2);
        }
      }
      SHARPI_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        SHARPI_UNROLL(2)
        for (int j = 0; j < 2; ++j) {
          const int32x4_t rows =
              vpaddq_s32(vpaddlq_s16(sums[r][2 * j]), vpaddlq_s16(sums[r][2 * j + 1]));
          dot[r][j] = quad == 0 ? rows : vaddq_s32(dot[r][j], rows);
        }
      }
    }
  }

 private:
  static void multiply(int8x16_t w, int8x16_t x, bool first, int16x8_t* sums) {
    sums[0] = first ? vmull_s8(vget_low_s8(w), vget_low_s8(x))
                    : vmlal_s8(sums[0], vget_low_s8(w), vget_low_s8(x));
    sums[1] = first ? vmull_high_s8(w, x) : vmlal_high_s8(sums[1], w, x);
  }
};

}  // namespace
}  // namespace sharpi::cpu
