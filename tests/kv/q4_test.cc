// SPDX-License-Identifier: MIT
// The codec q4: its rotation, and its levels held against plain arithmetic and against the signal
// to noise that they were chosen for.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "kv/codec.h"
#include "kv/kv_layout.h"
#include "kv/rotation.h"

namespace sharpi {
namespace {

constexpr KvDtype kQ4 = KvDtype::kQ4;

std::vector<float> gaussian(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}
std::vector<std::byte> encode(const std::vector<float>& x) {
  std::vector<std::byte> row(kv_row_bytes(kQ4, x.size()));
  EXPECT_TRUE(kv_encode_row(kQ4, x.data(), x.size(), row.data()).is_ok());
  return row;
}
std::vector<float> through(const std::vector<float>& x) {
  const std::vector<std::byte> row = encode(x);
  std::vector<float> y(x.size(), 5.0f);
  EXPECT_TRUE(kv_decode_row(kQ4, row.data(), x.size(), 0, x.size(), y.data()).is_ok());
  return y;
}
std::vector<float> rotated(std::vector<float> x, uint32_t b) {
  kv_rotate(x.data(), x.size(), b);
  return x;
}
std::vector<float> unrotated(std::vector<float> x, uint32_t b) {
  kv_unrotate(x.data(), x.size(), b);
  return x;
}
double decibels(const std::vector<float>& x, const std::vector<float>& y) {
  double signal = 0, noise = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    signal += double{x[i]} * x[i];
    noise += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
  }
  return 10 * std::log10(signal / noise);
}

TEST(Q4, GaussianRowsKeepTheSignalToNoiseOfTheLevels) {
  const std::vector<float> x = gaussian(1 << 18, 1);
  EXPECT_NEAR(decibels(x, through(x)), 22.4, 0.3);
}

/// What rotation is for: a channel that is always large costs q4 alone 6 dB and more of the others.
TEST(Q4, RowsWithLargeChannelsComeToTheSameOnceRotated) {
  std::vector<float> x = gaussian(1 << 18, 2);
  for (size_t i = 0; i < x.size(); i += 128) x[i + 5] *= 12.0f, x[i + 77] += 9.0f;
  EXPECT_GT(decibels(x, unrotated(through(rotated(x, 128)), 128)), 22.1);
  std::vector<float> small = x, after = through(x);
  for (size_t i = 0; i < x.size(); i += 128) {
    for (const size_t large : {5u, 77u}) small[i + large] = after[i + large] = 0.0f;
  }
  EXPECT_LT(decibels(small, after), 19.0) << "without rotation";
}

TEST(Q4, RotationIsTheSignedHadamardMatrix) {
  for (const uint32_t b : {16u, 32u, 64u, 128u}) {
    for (uint32_t column = 0; column < b; ++column) {
      std::vector<float> x(b, 0.0f);
      x[column] = 1.0f;
      const std::vector<float> y = rotated(x, b);
      const bool turned = (kRotationSigns[column / 32] >> column % 32 & 1u) != 0;
      for (uint32_t i = 0; i < b; ++i) {
        const bool negative = (__builtin_popcount(i & column) % 2 != 0) != turned;
        ASSERT_NEAR(y[i], (negative ? -1.0 : 1.0) / std::sqrt(b), 1e-7) << b << ", " << column;
      }
    }
  }
}

TEST(Q4, RotationKeepsDotProductsAndIsUndone) {
  for (const uint32_t b : {16u, 32u, 64u, 128u}) {
    const std::vector<float> x = gaussian(3 * b, b), y = gaussian(3 * b, b + 1);
    const std::vector<float> rx = rotated(x, b), ry = rotated(y, b), back = unrotated(rx, b);
    double plain = 0, turned = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      plain += double{x[i]} * y[i];
      turned += double{rx[i]} * ry[i];
      EXPECT_NEAR(back[i], x[i], 2e-6);
    }
    EXPECT_NEAR(turned, plain, 1e-4);
  }
  const std::vector<float> x = gaussian(96, 3);
  EXPECT_EQ(rotated(x, 0), x);
}

TEST(Q4, RowsOfEqualElementsAreNoSpike) {
  const std::vector<float> y = rotated(std::vector<float>(128, 1.0f), 128);
  EXPECT_LT(*std::max_element(y.begin(), y.end()), 6.0f) << "11.3 without signs";
}

TEST(Q4, TheRotationOfAHeadIsItsPowerOfTwo) {
  const std::pair<uint32_t, uint32_t> cases[] = {{16, 16},   {24, 8},    {64, 64},  {80, 16},
                                                 {96, 32},   {128, 128}, {192, 64}, {256, 128},
                                                 {512, 128}, {33, 1}};
  for (const auto& [dim, b] : cases) {
    EXPECT_EQ(rotation_of(dim), b);
    EXPECT_EQ(kv_rotation(kQ4, dim), b);
    EXPECT_EQ(kv_rotation(KvDtype::kQ8_0, dim), 0u);
  }
}

/// What is read and stored again, as a session does with rows beside those that it turns to other
/// positions, is not rounded again, however often: the scale is found again from what it gave.
TEST(Q4, RowsThatWereStoredAreStoredAsTheyWere) {
  const size_t n = 128;
  const std::vector<float> all = gaussian(256 * n, 8);
  for (size_t at = 0; at < all.size(); at += n) {
    std::vector<float> x(all.begin() + static_cast<std::ptrdiff_t>(at),
                         all.begin() + static_cast<std::ptrdiff_t>(at + n));
    const std::vector<std::byte> first = encode(rotated(x, n));
    std::vector<std::byte> row = first;
    for (int i = 0; i < 8; ++i) {
      std::vector<float> y(n);
      ASSERT_TRUE(kv_decode_row(kQ4, row.data(), n, 0, n, y.data()).is_ok());
      row = encode(rotated(unrotated(y, n), n));
    }
    ASSERT_TRUE(row == first) << "row " << at / n;
  }
}

/// Every code is the nearest level for some scale that the block's own comes close to, and the
/// scale leaves nothing of the levels in what remains.
TEST(Q4, BlocksAreNearestLevelsWithALeastSquaresScale) {
  const std::vector<float> x = gaussian(32 * 200, 4);
  const std::vector<std::byte> row = encode(x);
  for (size_t b = 0; b < 200; ++b) {
    uint16_t half;
    std::memcpy(&half, row.data() + x.size() / 2 + 2 * b, 2);
    const double d = f32_from_f16(half);
    double remains = 0, squares = 0;
    for (size_t i = b * 32; i < b * 32 + 32; ++i) {
      const auto byte = static_cast<unsigned>(row[i / 2]);
      const int level = kQ4Levels[byte >> i % 2 * 4 & 15];
      remains += (x[i] - d * level) * level;
      squares += level * level;
      double best = 1e9;
      for (const int other : kQ4Levels) best = std::min(best, std::fabs(x[i] / d - other));
      // The codes were found with the scale before: it differs by little.
      EXPECT_LE(std::fabs(x[i] / d - level), best + 5.0) << b << ", " << i;
    }
    EXPECT_LE(std::fabs(remains), std::fabs(d) * squares * 0x1p-10) << b;
  }
}

TEST(Q4, MiddlesLieBetweenLevels) {
  for (uint32_t i = 0; i + 1 < kQ4LevelCount; ++i) {
    EXPECT_EQ(2 * kQ4Middles[i], static_cast<float>(kQ4Levels[i] + kQ4Levels[i + 1])) << i;
  }
}

TEST(Q4, ANegativeLargestElementMakesTheScaleNegative) {
  std::vector<float> x(32, 0.0f);
  for (size_t i = 0; i < 32; ++i) x[i] = 0.01f * static_cast<float>(i);
  x[9] = -4.0f;
  const std::vector<std::byte> row = encode(x);
  uint16_t half;
  std::memcpy(&half, row.data() + 16, 2);
  EXPECT_LT(f32_from_f16(half), 0.0f);
  EXPECT_EQ(static_cast<unsigned>(row[4]) >> 4, 15u);
  EXPECT_NEAR(through(x)[9], -4.0f, 0.1f);
}

TEST(Q4, ZerosAndWhatIsTooSmallAreZeros) {
  for (const float tiny : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), 1e-29f}) {
    for (const float v : through(std::vector<float>(64, tiny))) {
      EXPECT_EQ(v, 0.0f);
      EXPECT_FALSE(std::signbit(v));
    }
  }
}

TEST(Q4, WhatIsNoNumberMakesItsBlockNanAndNoOther) {
  for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
    std::vector<float> x = gaussian(96, 5);
    x[40] = bad;
    const std::vector<float> y = through(x), good = through(gaussian(96, 5));
    for (size_t i = 0; i < 96; ++i) {
      if (i / 32 == 1) {
        EXPECT_TRUE(std::isnan(y[i])) << i;
      } else {
        EXPECT_EQ(y[i], good[i]) << i;
      }
    }
    const std::vector<float> whole = unrotated(through(rotated(x, 32)), 32);
    EXPECT_TRUE(
        std::all_of(whole.begin() + 32, whole.begin() + 64, [](float v) { return std::isnan(v); }));
    EXPECT_TRUE(std::isfinite(whole[0]) && std::isfinite(whole[95]));
  }
}

TEST(Q4, WhatIsBeyondTheScalesIsNoFiniteNumber) {
  for (const float huge : {1e9f, 3e38f}) {
    std::vector<float> x = gaussian(64, 6);
    x[3] = huge;
    const std::vector<float> y = through(x);
    EXPECT_FALSE(std::isfinite(y[3]));
    EXPECT_TRUE(std::isfinite(y[40]));
  }
}

TEST(Q4, CanonicalBlocksAreAScaleAndSixteenBytes) {
  const size_t n = 96;
  const std::vector<std::byte> row = encode(gaussian(n, 7));
  std::vector<std::byte> blob(row.size());
  ASSERT_EQ(row.size(), 54u);
  ASSERT_TRUE(kv_row_to_canonical(kQ4, row.data(), n, blob.data()).is_ok());
  for (size_t b = 0; b < 3; ++b) {
    EXPECT_EQ(std::memcmp(blob.data() + 18 * b, row.data() + 48 + 2 * b, 2), 0);
    EXPECT_EQ(std::memcmp(blob.data() + 18 * b + 2, row.data() + 16 * b, 16), 0);
  }
}

/// Only where rows are stored so: other layers may have any heads.
TEST(Q4, HeadsWithoutAPowerOfTwoAreRefusedByName) {
  ModelSpec spec;
  spec.layers.resize(2);
  for (LayerSpec& l : spec.layers) {
    l.mixer = MixerKind::kAttention;
    l.attention.n_kv_heads = 4;
    l.attention.head_dim = 24;
  }
  std::vector<KvDtypePair> dtypes(2, KvDtypePair{KvDtype::kF32, KvDtype::kQ8_0});
  const std::vector<bool> all(2, true);
  EXPECT_TRUE(check_kv_geometry(spec, all, dtypes).is_ok());
  dtypes[1].v = kQ4;
  const Status refused = check_kv_geometry(spec, all, dtypes);
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_EQ(refused.text(),
            "layer 1: the largest power of two that divides a head of 24 elements is 8, but q4 "
            "rotates at "
            "least 16 together; f32 and bf16 and q8_0 work");
  EXPECT_TRUE(check_kv_geometry(spec, {true, false}, dtypes).is_ok());
  spec.layers[1].attention.head_dim = 48;
  EXPECT_TRUE(check_kv_geometry(spec, all, dtypes).is_ok());
  spec.layers[1].attention.n_kv_heads = 1;
  EXPECT_EQ(
      check_kv_geometry(spec, all, dtypes).text(),
      "layer 1: a KV row has 48 elements, which is no multiple of the 32 that q4 stores together; "
      "f32 and bf16 work");
}

}  // namespace
}  // namespace sharpi
