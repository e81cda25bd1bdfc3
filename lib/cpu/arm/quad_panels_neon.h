// SPDX-License-Identifier: MIT
// Panels of 8 weight rows for products that take four elements of an activation row at a time:
// [k/4][8 rows][4]. Everything has internal linkage. Thread rule: pure functions.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace sharpi::cpu {
namespace {

struct QuadPanels {
  static constexpr uint64_t panel_index(uint64_t at, uint64_t row) {
    return at / 4 * 32 + row * 4 + at % 4;
  }
  /// 16 codes of each of four rows, `first` being 0 or 4, to their places in 128 bytes of a panel.
  static void store_panel(const int8x16_t* rows, uint64_t first, int8_t* to) {
    int32x4_t v[4];
    for (int i = 0; i < 4; ++i) v[i] = vreinterpretq_s32_s8(rows[i]);
    const int32x4_t even[2] = {vtrn1q_s32(v[0], v[1]), vtrn1q_s32(v[2], v[3])};
    const int32x4_t odd[2] = {vtrn2q_s32(v[0], v[1]), vtrn2q_s32(v[2], v[3])};
    store_quad(to + 4 * first, vget_low_s32(even[0]), vget_low_s32(even[1]));
    store_quad(to + 32 + 4 * first, vget_low_s32(odd[0]), vget_low_s32(odd[1]));
    store_quad(to + 64 + 4 * first, vget_high_s32(even[0]), vget_high_s32(even[1]));
    store_quad(to + 96 + 4 * first, vget_high_s32(odd[0]), vget_high_s32(odd[1]));
  }

 private:
  static void store_quad(int8_t* to, int32x2_t low, int32x2_t high) {
    vst1q_s8(to, vreinterpretq_s8_s32(vcombine_s32(low, high)));
  }
};

}  // namespace
}  // namespace sharpi::cpu
