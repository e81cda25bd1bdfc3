// SPDX-License-Identifier: MIT
#include "kv/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "kv/kv_view.h"

namespace sharpi {
namespace {

constexpr auto& kCodecs = kAllKvCodecs;

std::vector<float> random_row(size_t n, uint32_t seed, float scale = 1.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

std::vector<std::byte> encode(KvDtype dtype, const std::vector<float>& x) {
  std::vector<std::byte> row(kv_row_bytes(dtype, x.size()));
  EXPECT_TRUE(kv_encode_row(dtype, x.data(), x.size(), row.data()).is_ok());
  return row;
}

std::vector<float> decode(KvDtype dtype, const std::vector<std::byte>& row, size_t n) {
  std::vector<float> x(n, std::nanf(""));
  EXPECT_TRUE(kv_decode_row(dtype, row.data(), n, 0, n, x.data()).is_ok());
  return x;
}

int8_t q8_value(const std::vector<std::byte>& row, size_t i) {
  return static_cast<int8_t>(row[i]);
}
uint16_t q8_scale(const std::vector<std::byte>& row, size_t n, size_t block) {
  uint16_t d;
  std::memcpy(&d, row.data() + n + 2 * block, 2);
  return d;
}

TEST(KvCodec, RowBytesFollowTheBlockFormats) {
  EXPECT_EQ(kv_row_bytes(KvDtype::kF32, 96), 384u);
  EXPECT_EQ(kv_row_bytes(KvDtype::kBf16, 96), 192u);
  EXPECT_EQ(kv_row_bytes(KvDtype::kQ8_0, 32), 34u);
  EXPECT_EQ(kv_row_bytes(KvDtype::kQ8_0, 96), 102u);
}

TEST(KvCodec, NamesAndBlocks) {
  ASSERT_NE(kv_codec(KvDtype::kQ8_0), nullptr);
  EXPECT_EQ(kv_codec(KvDtype::kQ8_0)->block, 32u);
  EXPECT_EQ(kv_codec(KvDtype::kBf16)->block, 1u);
  EXPECT_EQ(kv_codec(KvDtype::kAuto), nullptr);
  EXPECT_STREQ(kv_dtype_name(KvDtype::kF32), "f32");
  EXPECT_STREQ(kv_dtype_name(KvDtype::kAuto), "auto");
  EXPECT_STREQ(kv_dtype_name(static_cast<KvDtype>(17)), "?");
}

TEST(KvCodec, HeadsPartEveryPlaneAndMissNoByte) {
  for (const KvDtype dtype : kCodecs) {
    KvView v;
    v.k_dtype = dtype;
    v.n_heads = 3;
    v.head_dim = 64;
    v.k_row_bytes = static_cast<uint32_t>(kv_row_bytes(dtype, 3 * 64));
    std::vector<int> owner(v.k_row_bytes, -1);
    for (int head = 0; head < 3; ++head) {
      for (const KvPart& part : KvHeadParts(v, false, static_cast<uint32_t>(head))) {
        for (uint32_t i = 0; i < part.bytes; ++i) {
          ASSERT_EQ(owner.at(part.offset + i), -1) << kv_dtype_name(dtype);
          owner[part.offset + i] = head;
        }
      }
    }
    EXPECT_EQ(std::count(owner.begin(), owner.end(), -1), 0) << kv_dtype_name(dtype);
    // A head's parts alone decode to the head's elements, whatever the others hold.
    const std::vector<float> x = random_row(3 * 64, 9);
    const std::vector<std::byte> row = encode(dtype, x);
    std::vector<std::byte> alone(row.size(), std::byte{0x11});
    for (size_t i = 0; i < row.size(); ++i) alone[i] = owner[i] == 1 ? row[i] : alone[i];
    EXPECT_EQ(std::memcmp(decode(dtype, alone, 192).data() + 64,
                          decode(dtype, row, 192).data() + 64, 64 * sizeof(float)),
              0)
        << kv_dtype_name(dtype);
  }
}

TEST(KvCodec, AutomaticNarrowingEndsAndNeverWidens) {
  for (const KvCodec& c : kv_codecs()) {
    const KvCodec* next = kv_codec(c.narrower);
    ASSERT_NE(next, nullptr) << c.name;
    EXPECT_LE(next->row_bytes(1024), c.row_bytes(1024)) << c.name;
    if (next != &c) {
      EXPECT_LT(next->row_bytes(1024), c.row_bytes(1024)) << c.name;
    }
  }
}

TEST(KvCodec, UnknownCodecIsAnInternalErrorAndWritesNothing) {
  const std::vector<float> x(32, 1.0f);
  for (const KvDtype bad :
       {KvDtype::kAuto, static_cast<KvDtype>(kKvCodecs + 1), static_cast<KvDtype>(99)}) {
    std::vector<std::byte> row(256, std::byte{0xAB}), other(256, std::byte{0xAB});
    std::vector<float> back(32, 7.0f);
    EXPECT_EQ(kv_row_bytes(bad, 32), 0u);
    EXPECT_EQ(kv_encode_row(bad, x.data(), 32, row.data()).code(), Code::kInternal);
    EXPECT_EQ(kv_decode_row(bad, row.data(), 32, 0, 32, back.data()).code(), Code::kInternal);
    EXPECT_EQ(kv_row_to_canonical(bad, row.data(), 32, other.data()).code(), Code::kInternal);
    EXPECT_EQ(kv_row_from_canonical(bad, row.data(), 32, other.data()).code(), Code::kInternal);
    EXPECT_EQ(row, std::vector<std::byte>(256, std::byte{0xAB}));
    EXPECT_EQ(other, row);
    EXPECT_EQ(back, std::vector<float>(32, 7.0f));
  }
}

TEST(KvCodec, F32IsBitExact) {
  std::vector<float> x = random_row(70, 1);
  x[3] = std::numeric_limits<float>::denorm_min();
  x[4] = -0.0f;
  const std::vector<float> back = decode(KvDtype::kF32, encode(KvDtype::kF32, x), x.size());
  EXPECT_EQ(std::memcmp(back.data(), x.data(), x.size() * 4), 0);
}

TEST(KvCodec, Bf16RoundsToNearestEven) {
  // 1 + 2^-8 lies between 1 and 1 + 2^-7: ties go to the even mantissa.
  const std::vector<float> x = {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, -1.0f - 0x1p-8f,
                                1.0f + 0x1p-8f + 0x1p-20f, 0x1p-133f};
  const std::vector<float> want = {1.0f, 1.0f + 0x1p-6f, -1.0f, 1.0f + 0x1p-7f, 0x1p-133f};
  EXPECT_EQ(decode(KvDtype::kBf16, encode(KvDtype::kBf16, x), x.size()), want);
}

TEST(KvCodec, Q8MatchesThePlainRule) {
  const size_t n = 32 * 9;
  std::vector<float> x = random_row(n, 2);
  for (size_t b = 0; b < 9; ++b) {
    const float scale = std::ldexp(1.0f, static_cast<int>(b) * 5 - 20);
    for (size_t i = 0; i < 32; ++i) x[b * 32 + i] *= scale;
  }
  const std::vector<std::byte> row = encode(KvDtype::kQ8_0, x);
  for (size_t b = 0; b < 9; ++b) {
    float amax = 0.0f;
    for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[b * 32 + i]));
    const float d = amax / 127.0f;
    EXPECT_EQ(q8_scale(row, n, b), f16_from_f32(d));
    for (size_t i = 0; i < 32; ++i) {
      const float v = std::nearbyintf(x[b * 32 + i] * (1.0f / d));
      EXPECT_EQ(q8_value(row, b * 32 + i), std::fmin(127.0f, std::fmax(-127.0f, v)))
          << b << "," << i;
    }
  }
}

TEST(KvCodec, Q8ErrorIsAtMostHalfAStepPlusTheScaleRounding) {
  const size_t n = 32 * 40;
  const std::vector<float> x = random_row(n, 3, 3.0f);
  const std::vector<float> back = decode(KvDtype::kQ8_0, encode(KvDtype::kQ8_0, x), n);
  for (size_t b = 0; b < n / 32; ++b) {
    float amax = 0.0f;
    for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[b * 32 + i]));
    // Half a step of d = amax/127, and fp16(d) is off by at most 2^-11 of d over 127 steps.
    const float bound = amax / 127.0f * (0.5f + 127.0f * 0x1p-11f) * (1.0f + 1e-5f);
    for (size_t i = b * 32; i < b * 32 + 32; ++i) EXPECT_LE(std::fabs(back[i] - x[i]), bound) << i;
  }
}

TEST(KvCodec, Q8BlockOfZerosIsAllZeroBytes) {
  const std::vector<std::byte> row = encode(KvDtype::kQ8_0, std::vector<float>(64, 0.0f));
  EXPECT_EQ(row, std::vector<std::byte>(68, std::byte{0}));
}

TEST(KvCodec, Q8SubnormalBlockDecodesToZerosNotNan) {
  for (const float tiny : {std::numeric_limits<float>::denorm_min(), 1e-40f, 1e-29f, 1.2e-28f}) {
    std::vector<float> x(32, tiny);
    x[5] = -tiny;
    const std::vector<std::byte> row = encode(KvDtype::kQ8_0, x);
    // 1.2e-28 / 127 and smaller are under the 1e-30 guard: the values themselves are zeros too.
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(q8_value(row, i), 0) << tiny;
    EXPECT_EQ(decode(KvDtype::kQ8_0, row, 32), std::vector<float>(32, 0.0f)) << tiny;
  }
}

TEST(KvCodec, Q8ScaleJustAboveTheGuardKeepsTheValues) {
  const std::vector<std::byte> row = encode(KvDtype::kQ8_0, std::vector<float>(32, 1.4e-28f));
  for (size_t i = 0; i < 32; ++i) EXPECT_EQ(q8_value(row, i), 127);
  EXPECT_EQ(q8_scale(row, 32, 0), 0u);  // the scale is under half of fp16's smallest subnormal
}

TEST(KvCodec, Q8OutlierTakesTheWholeRange) {
  std::vector<float> x(32, 0.25f);
  x[17] = -254.0f;
  const std::vector<std::byte> row = encode(KvDtype::kQ8_0, x);
  EXPECT_EQ(q8_value(row, 17), -127);
  EXPECT_EQ(q8_value(row, 0), 0);
  const std::vector<float> back = decode(KvDtype::kQ8_0, row, 32);
  EXPECT_EQ(back[17], -254.0f);
  EXPECT_EQ(back[0], 0.0f);
}

TEST(KvCodec, Q8TiesGoToEvenAndBothExtremesAreReached) {
  std::vector<float> x(32, 0.0f);
  x[0] = 127.0f;  // d = 1 exactly
  x[1] = -127.0f;
  x[2] = 0.5f;
  x[3] = 1.5f;
  x[4] = -2.5f;
  x[5] = 125.5f;
  x[6] = 126.5f;
  const std::vector<std::byte> row = encode(KvDtype::kQ8_0, x);
  const int want[] = {127, -127, 0, 2, -2, 126, 126};
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(q8_value(row, i), want[i]) << i;
}

TEST(KvCodec, Q8NanReachesTheDecodedBlock) {
  std::vector<float> x(64, 1.0f);
  x[40] = std::nanf("");
  const std::vector<float> back = decode(KvDtype::kQ8_0, encode(KvDtype::kQ8_0, x), 64);
  EXPECT_EQ(back[0], back[31]);
  EXPECT_TRUE(std::isnan(back[40]));
}

TEST(KvCodec, DecodingARangeEqualsTheSameRangeOfTheRow) {
  const size_t n = 32 * 7;
  const std::vector<float> x = random_row(n, 4);
  for (const KvDtype dtype : kCodecs) {
    const std::vector<std::byte> row = encode(dtype, x);
    const std::vector<float> whole = decode(dtype, row, n);
    for (size_t first = 0; first < n; first += 16) {  // heads of 80 begin so
      for (size_t count = 0; first + count <= n; count += 16) {
        std::vector<float> part(count + 1, 5.0f);
        ASSERT_TRUE(kv_decode_row(dtype, row.data(), n, first, count, part.data()).is_ok());
        EXPECT_EQ(std::memcmp(part.data(), whole.data() + first, count * 4), 0);
        EXPECT_EQ(part[count], 5.0f);
      }
    }
  }
}

TEST(KvCodec, CanonicalQ8IsAScaleThenThirtyTwoValues) {
  const size_t n = 96;
  const std::vector<std::byte> row = encode(KvDtype::kQ8_0, random_row(n, 5));
  std::vector<std::byte> blob(row.size());
  ASSERT_TRUE(kv_row_to_canonical(KvDtype::kQ8_0, row.data(), n, blob.data()).is_ok());
  for (size_t b = 0; b < 3; ++b) {
    uint16_t d;
    std::memcpy(&d, blob.data() + 34 * b, 2);
    EXPECT_EQ(d, q8_scale(row, n, b));
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(blob[34 * b + 2 + i], row[32 * b + i]);
  }
}

TEST(KvCodec, CanonicalRoundTripRestoresEveryByte) {
  for (const KvDtype dtype : kCodecs) {
    const size_t n = 160;
    const std::vector<std::byte> row = encode(dtype, random_row(n, 6));
    std::vector<std::byte> blob(row.size()), back(row.size());
    ASSERT_TRUE(kv_row_to_canonical(dtype, row.data(), n, blob.data()).is_ok());
    ASSERT_TRUE(kv_row_from_canonical(dtype, blob.data(), n, back.data()).is_ok());
    EXPECT_EQ(back, row);
  }
}

TEST(KvCodec, ParseTakesEverySpelling) {
  struct Case {
    const char* text;
    KvDtype want;
  };
  const Case cases[] = {
      {"fp32", KvDtype::kF32},  {"F32", KvDtype::kF32},   {" bf16\t", KvDtype::kBf16},
      {"BF16", KvDtype::kBf16}, {"q8_0", KvDtype::kQ8_0}, {"\nQ8 ", KvDtype::kQ8_0},
      {"q4", KvDtype::kQ4},     {" TQ4", KvDtype::kQ4},   {"Auto", KvDtype::kAuto}};
  for (const Case& c : cases) {
    bool is_set = false;
    const Result<KvDtype> got = kv_dtype_parse(c.text, &is_set);
    ASSERT_TRUE(got.is_ok()) << c.text;
    EXPECT_EQ(got.value(), c.want) << c.text;
    EXPECT_TRUE(is_set) << c.text;
  }
}

TEST(KvCodec, EmptyTextIsUnset) {
  for (const char* text : {"", "  \t\n", static_cast<const char*>(nullptr)}) {
    bool is_set = true;
    const Result<KvDtype> got = kv_dtype_parse(text, &is_set);
    ASSERT_TRUE(got.is_ok());
    EXPECT_EQ(got.value(), KvDtype::kAuto);
    EXPECT_FALSE(is_set);
  }
}

TEST(KvCodec, ParseRefusesWithTheValueAndTheList) {
  for (const char* text : {"f16", "q8_1", "q4_0", "bf 16", "f32x", "q", "0"}) {
    bool is_set = false;
    const Result<KvDtype> got = kv_dtype_parse(text, &is_set);
    ASSERT_FALSE(got.is_ok()) << text;
    EXPECT_EQ(got.status().code(), Code::kInvalidArgument);
    EXPECT_TRUE(is_set);
    const std::string& said = got.status().text();
    EXPECT_NE(said.find('"' + std::string(text) + '"'), std::string::npos) << said;
    for (const char* name : {"fp32", "f32", "bf16", "q8_0", "q8", "q4", "tq4", "auto"}) {
      EXPECT_NE(said.find(name), std::string::npos) << said;
    }
  }
}

TEST(KvCodec, ParseShowsABoundedOneLineValue) {
  const std::string text = "a\nb" + std::string(500, 'x');
  const Result<KvDtype> got = kv_dtype_parse(text.c_str(), nullptr);
  ASSERT_FALSE(got.is_ok());
  EXPECT_EQ(got.status().text().find('\n'), std::string::npos);
  EXPECT_LT(got.status().text().size(), 160u);
}

}  // namespace
}  // namespace sharpi
