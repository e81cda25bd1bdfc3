// SPDX-License-Identifier: MIT
#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sharpi {
namespace {

TEST(Half, EveryHalfSurvivesTheRoundTripThroughFloat) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float f = f32_from_f16(h);
    if (std::isnan(f)) continue;
    ASSERT_EQ(f16_from_f32(f), h) << "half bits " << bits;
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(f16_from_f32(1.0f + 0x1p-11f), 0x3C00);      // tie goes to even
  EXPECT_EQ(f16_from_f32(1.0f + 3 * 0x1p-11f), 0x3C02);  // tie goes to even, upwards
  EXPECT_EQ(f16_from_f32(65520.0f), 0x7C00);             // first value that overflows
  EXPECT_EQ(f16_from_f32(0x1p-25f), 0x0000);             // tie with zero
  EXPECT_EQ(f16_from_f32(std::nextafter(0x1p-25f, 1.0f)), 0x0001);
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(bf16_from_f32(1.0f), 0x3F80);
  EXPECT_EQ(bf16_from_f32(1.0f + 0x1p-8f), 0x3F80);
  EXPECT_EQ(bf16_from_f32(1.0f + 3 * 0x1p-8f), 0x3F82);
  EXPECT_TRUE(std::isnan(f32_from_bf16(bf16_from_f32(std::numeric_limits<float>::quiet_NaN()))));
}

}  // namespace
}  // namespace sharpi
