// SPDX-License-Identifier: MIT
#include "gguf/ggml_type.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/half.h"
#include "support/gguf_writer.h"

namespace sharpi {
namespace {

constexpr int kCodebook[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                               1,    13,   25,  38,  53,  69,  89,  113};
constexpr int kFp4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The published formulas, one element at a time, in doubles. Every product of a half and the small
// integers of a block is exact in f32 already, so results must agree in all bits.
struct Block {
  const uint8_t* b;
  double h(int o) const {
    return double{f32_from_f16(static_cast<uint16_t>(b[o] | b[o + 1] << 8))};
  }
  int s8(int o) const { return b[o] < 128 ? b[o] : b[o] - 256; }
  int bit(int o, int k) const { return b[o + k / 8] >> (k % 8) & 1; }
};

int scale6(const uint8_t* c, int j) {
  return j < 4 ? c[j] & 63 : (c[j + 4] & 15) | ((c[j - 4] >> 6) << 4);
}
int min6(const uint8_t* c, int j) {
  return j < 4 ? c[j + 4] & 63 : (c[j + 4] >> 4) | ((c[j] >> 6) << 4);
}

double element_32(GgmlType type, const Block& k, int i) {
  const uint8_t* b = k.b;
  const auto nibble = [&](int base) { return (b[base + i % 16] >> (4 * (i / 16))) & 15; };
  switch (type) {
    case GgmlType::kQ8_0:
      return k.h(0) * k.s8(2 + i);
    case GgmlType::kQ4_0:
      return k.h(0) * (nibble(2) - 8);
    case GgmlType::kQ4_1:
      return k.h(0) * nibble(4) + k.h(2);
    case GgmlType::kQ5_0:
      return k.h(0) * ((nibble(6) | k.bit(2, i) << 4) - 16);
    case GgmlType::kQ5_1:
      return k.h(0) * (nibble(8) | k.bit(4, i) << 4) + k.h(2);
    case GgmlType::kIQ4_NL:
      return k.h(0) * kCodebook[nibble(2)];
    case GgmlType::kMXFP4:
      return std::ldexp(1.0, b[0] - 128) * kFp4[nibble(1)];
    default:
      ADD_FAILURE();
      return 0;
  }
}

double element_256(GgmlType type, const Block& k, int i) {
  const uint8_t* b = k.b;
  const int two_bits_at = 32 * (i / 128) + i % 32, two_bits_shift = 2 * ((i % 128) / 32);
  switch (type) {
    case GgmlType::kQ2_K: {
      const int s = b[i / 16], q = (b[16 + two_bits_at] >> two_bits_shift) & 3;
      return k.h(80) * (s & 15) * q - k.h(82) * (s >> 4);
    }
    case GgmlType::kQ3_K: {
      const int j = i / 16;
      const int lo = (b[96 + j % 8] >> (4 * (j / 8))) & 15;
      const int hi = (b[96 + 8 + j % 4] >> (2 * (j / 4))) & 3;
      const int q = (b[32 + two_bits_at] >> two_bits_shift) & 3;
      const int high = (b[i % 32] >> (i / 32)) & 1;
      return k.h(108) * ((lo | hi << 4) - 32) * (q - (high != 0 ? 0 : 4));
    }
    case GgmlType::kQ4_K: {
      const int j = i / 32, q = (b[16 + 32 * (i / 64) + i % 32] >> (4 * (j % 2))) & 15;
      return k.h(0) * scale6(b + 4, j) * q - k.h(2) * min6(b + 4, j);
    }
    case GgmlType::kQ5_K: {
      const int j = i / 32, low = (b[48 + 32 * (i / 64) + i % 32] >> (4 * (j % 2))) & 15;
      const int q = low | ((b[16 + i % 32] >> j) & 1) << 4;
      return k.h(0) * scale6(b + 4, j) * q - k.h(2) * min6(b + 4, j);
    }
    case GgmlType::kQ6_K: {
      const int g = i / 128, r = i % 128;
      const int lo = (b[64 * g + r % 64] >> (4 * (r / 64))) & 15;
      const int hi = (b[128 + 32 * g + r % 32] >> (2 * (r / 32))) & 3;
      return k.h(208) * k.s8(192 + i / 16) * ((lo | hi << 4) - 32);
    }
    case GgmlType::kIQ4_XS: {
      const int j = i / 32, high = b[2] | b[3] << 8;
      const int ls = ((b[4 + j / 2] >> (4 * (j % 2))) & 15) | (((high >> (2 * j)) & 3) << 4);
      const int n = (b[8 + 16 * j + i % 16] >> (4 * ((i % 32) / 16))) & 15;
      return k.h(0) * (ls - 32) * kCodebook[n];
    }
    default:
      ADD_FAILURE();
      return 0;
  }
}

double element(GgmlType type, const uint8_t* b, int i) {
  uint32_t word = 0;
  if (type == GgmlType::kF32) {
    std::memcpy(&word, b, 4);
    return double{std::bit_cast<float>(word)};
  }
  if (type == GgmlType::kF16) return Block{b}.h(0);
  if (type == GgmlType::kBF16) {
    std::memcpy(&word, b, 2);
    return double{std::bit_cast<float>(word << 16)};
  }
  const bool small = ggml_traits(type).block_elements == 32;
  return small ? element_32(type, Block{b}, i) : element_256(type, Block{b}, i);
}

struct TypeRow {
  GgmlType type;
  std::vector<int> halves;  // byte offsets of the half-precision fields of a block
};
void PrintTo(const TypeRow& row, std::ostream* out) {
  *out << ggml_traits(row.type).name;
}

class Dequantize : public ::testing::TestWithParam<TypeRow> {
 protected:
  void expect_formula(const std::vector<uint8_t>& rows, uint64_t n) {
    const GgmlType type = GetParam().type;
    const GgmlTypeTraits& t = ggml_traits(type);
    std::vector<float> got(n + 1, -77.0f);
    dequantize_row(type, rows.data(), got.data(), n);
    for (uint64_t i = 0; i < n; ++i) {
      const uint8_t* block = rows.data() + i / t.block_elements * t.block_bytes;
      const double exact = element(type, block, static_cast<int>(i % t.block_elements));
      const auto expected = static_cast<float>(exact);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(got[i])) << "element " << i;
      } else {
        ASSERT_EQ(got[i], expected) << "element " << i;
      }
    }
    EXPECT_EQ(got[n], -77.0f) << "wrote past the row";
  }
  uint64_t row_bytes(uint64_t n) const { return ggml_row_bytes(GetParam().type, n); }
};

TEST_P(Dequantize, EqualsThePublishedFormulaOnRandomBlocks) {
  constexpr uint64_t n = 256 * 64;
  std::mt19937_64 random(17);
  std::vector<uint8_t> rows(row_bytes(n));
  for (uint8_t& b : rows) b = static_cast<uint8_t>(random());
  expect_formula(rows, n);
}

TEST_P(Dequantize, EqualsTheFormulaAtExtremeScales) {
  // Zero, the smallest and largest subnormal, one, the largest finite, infinity, NaN; both signs.
  constexpr uint16_t kScales[] = {0x0000, 0x0001, 0x03FF, 0x3C00, 0x7BFF, 0x7C00, 0x7E00,
                                  0x8000, 0x8001, 0x83FF, 0xBC00, 0xFBFF, 0xFC00};
  std::mt19937_64 random(18);
  std::vector<uint8_t> rows(row_bytes(256));
  const uint32_t block_bytes = ggml_traits(GetParam().type).block_bytes;
  for (const uint16_t first : kScales) {
    for (const uint16_t second : kScales) {
      for (uint8_t& b : rows) b = static_cast<uint8_t>(random());
      for (uint64_t at = 0; at < rows.size(); at += block_bytes) {
        uint16_t value = first;
        for (const int offset : GetParam().halves) {
          std::memcpy(rows.data() + at + static_cast<uint64_t>(offset), &value, 2);
          value = second;
        }
      }
      expect_formula(rows, 256);
    }
  }
}

TEST_P(Dequantize, ReadsFromAnyAlignment) {
  std::mt19937_64 random(19);
  std::vector<uint8_t> rows(row_bytes(256) + 1);
  for (uint8_t& b : rows) b = static_cast<uint8_t>(random());
  const std::vector<uint8_t> aligned(rows.begin() + 1, rows.end());
  std::vector<float> odd(256), even(256);
  dequantize_row(GetParam().type, rows.data() + 1, odd.data(), 256);
  dequantize_row(GetParam().type, aligned.data(), even.data(), 256);
  EXPECT_EQ(std::memcmp(odd.data(), even.data(), 256 * sizeof(float)), 0);
}

TEST_P(Dequantize, RandomRowsOfTheTestSupportAreFiniteCentredAndOfTheAskedSpread) {
  constexpr uint64_t n = 256 * 32;
  const test::Bytes rows = test::random_rows(GetParam().type, n, 5, 0.05);
  ASSERT_EQ(rows.size(), row_bytes(n));
  std::vector<float> values(n);
  dequantize_row(GetParam().type, rows.data(), values.data(), n);
  double sum = 0, squares = 0;
  for (const float v : values) {
    ASSERT_TRUE(std::isfinite(v));
    sum += double{v};
    squares += double{v} * double{v};
  }
  const double deviation = std::sqrt(squares / n);
  EXPECT_GT(deviation, 0.025);
  EXPECT_LT(deviation, 0.1);
  EXPECT_LT(std::abs(sum / n), 0.02);
}

INSTANTIATE_TEST_SUITE_P(
    Types, Dequantize,
    ::testing::Values(TypeRow{GgmlType::kF32, {}}, TypeRow{GgmlType::kF16, {0}},
                      TypeRow{GgmlType::kBF16, {0}}, TypeRow{GgmlType::kQ8_0, {0}},
                      TypeRow{GgmlType::kQ4_0, {0}}, TypeRow{GgmlType::kQ4_1, {0, 2}},
                      TypeRow{GgmlType::kQ5_0, {0}}, TypeRow{GgmlType::kQ5_1, {0, 2}},
                      TypeRow{GgmlType::kIQ4_NL, {0}}, TypeRow{GgmlType::kMXFP4, {}},
                      TypeRow{GgmlType::kQ2_K, {80, 82}}, TypeRow{GgmlType::kQ3_K, {108}},
                      TypeRow{GgmlType::kQ4_K, {0, 2}}, TypeRow{GgmlType::kQ5_K, {0, 2}},
                      TypeRow{GgmlType::kQ6_K, {208}}, TypeRow{GgmlType::kIQ4_XS, {0}}),
    [](const auto& param) { return std::string(ggml_traits(param.param.type).name); });

TEST(DequantizeMxfp4, EveryExponentGivesItsPowerOfTwo) {
  for (int e = 0; e < 256; ++e) {
    std::vector<uint8_t> block(17, 0x21);  // low nibble 1, high nibble 2: one and two halves
    block[0] = static_cast<uint8_t>(e);
    float y[32];
    dequantize_row(GgmlType::kMXFP4, block.data(), y, 32);
    EXPECT_EQ(double{y[0]}, std::ldexp(1.0, e - 128)) << e;
    EXPECT_EQ(double{y[31]}, std::ldexp(1.0, e - 127) > double{std::numeric_limits<float>::max()}
                                 ? HUGE_VAL
                                 : std::ldexp(1.0, e - 127))
        << e;
  }
}

TEST(GgmlTypeTraits, EveryIdOfTheFormatHasItsPublishedGeometry) {
  struct Row {
    uint32_t id, elements, bytes;
  };
  constexpr Row kRows[] = {
      {0, 1, 4},     {1, 1, 2},      {2, 32, 18},    {3, 32, 20},    {6, 32, 22},    {7, 32, 24},
      {8, 32, 34},   {10, 256, 84},  {11, 256, 110}, {12, 256, 144}, {13, 256, 176}, {14, 256, 210},
      {16, 256, 66}, {17, 256, 74},  {18, 256, 98},  {19, 256, 50},  {20, 32, 18},   {21, 256, 110},
      {22, 256, 82}, {23, 256, 136}, {24, 1, 1},     {25, 1, 2},     {26, 1, 4},     {27, 1, 8},
      {28, 1, 8},    {29, 256, 56},  {30, 1, 2},     {34, 256, 54},  {35, 256, 66},  {39, 32, 17},
      {40, 64, 36},  {41, 128, 18},  {42, 64, 18}};
  uint32_t n_known = 0;
  for (uint32_t id = 0; id < 1000; ++id) n_known += ggml_type_traits(id) != nullptr ? 1 : 0;
  EXPECT_EQ(n_known, std::size(kRows));
  for (const Row& row : kRows) {
    const GgmlTypeTraits* t = ggml_type_traits(row.id);
    ASSERT_NE(t, nullptr) << row.id;
    EXPECT_EQ(t->block_elements, row.elements) << t->name;
    EXPECT_EQ(t->block_bytes, row.bytes) << t->name;
  }
}

TEST(GgmlTypeTraits, UnknownIdsHaveNone) {
  for (const uint32_t id : {4u, 5u, 9u, 15u, 31u, 36u, 43u, 1000u, UINT32_MAX}) {
    EXPECT_EQ(ggml_type_traits(id), nullptr) << id;
  }
}

}  // namespace
}  // namespace sharpi
