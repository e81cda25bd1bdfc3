// SPDX-License-Identifier: MIT
#include "base/hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace sharpi {
namespace {

std::vector<uint8_t> ramp(size_t n) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(i * 131 + 7);
  return bytes;
}

struct Vector {
  uint64_t bytes, plain, seeded;  // of ramp(bytes); from the reference implementation of XXH64
};
class Hash64Vector : public ::testing::TestWithParam<Vector> {};

TEST_P(Hash64Vector, EqualsThePublishedAlgorithm) {
  const auto data = ramp(GetParam().bytes);
  EXPECT_EQ(hash64(data.data(), data.size()), GetParam().plain);
  EXPECT_EQ(hash64(data.data(), data.size(), 0x9E3779B1u), GetParam().seeded);
}

INSTANTIATE_TEST_SUITE_P(Lengths, Hash64Vector,
                         ::testing::Values(Vector{0, 0xef46db3751d8e999, 0xac75fda2929b17ef},
                                           Vector{1, 0xa96c7f0ce858bbb7, 0x84e535b36672440d},
                                           Vector{3, 0xbed43740ee6332bb, 0x00b77b485431ce5d},
                                           Vector{4, 0xfa212ae44b3bb23d, 0x60492c4bfcb70cac},
                                           Vector{5, 0xd339dcc9ac8e6776, 0xdb92b23c2ba23485},
                                           Vector{8, 0x994b676b71ce94dd, 0xf424edebfea8d23f},
                                           Vector{12, 0xb92f588ce720786e, 0xddd89bdbf8aa26e0},
                                           Vector{31, 0x6711d55e306b5d8f, 0xfa1259cc8b20eb58},
                                           Vector{32, 0x07f7b8e3bc5d6e25, 0x920f3e10a5db09c6},
                                           Vector{33, 0x09f85eeb4e1cbe9f, 0x3d805e8712cb4890},
                                           Vector{63, 0xb7c9968c066cb6a5, 0x184bc5097530bb9a},
                                           Vector{64, 0x50d4159a0411632e, 0x94667e10d68b3991},
                                           Vector{100, 0x9ddada11d3dc2d8f, 0x5766be6782b96389},
                                           Vector{256, 0xa2dbe913965256fc, 0xdee9b4bc37766333}),
                         [](const auto& param) {
                           return "Bytes" + std::to_string(param.param.bytes);
                         });

TEST(Hash64, DoesNotDependOnHowTheStreamIsCut) {
  const auto data = ramp(300);
  const uint64_t whole = hash64(data.data(), data.size(), 5);
  for (size_t piece = 1; piece <= 70; ++piece) {
    Hash64 hash(5);
    for (size_t at = 0; at < data.size(); at += piece) {
      hash.add(data.data() + at, std::min(piece, data.size() - at));
    }
    EXPECT_EQ(hash.value(), whole) << "pieces of " << piece;
  }
}

TEST(Hash64, ValueMayBeReadInTheMiddleOfTheStream) {
  const auto data = ramp(100);
  Hash64 hash;
  hash.add(data.data(), 45);
  EXPECT_EQ(hash.value(), hash64(data.data(), 45));
  hash.add(data.data() + 45, 55);
  EXPECT_EQ(hash.value(), hash64(data.data(), 100));
}

TEST(Hash64, EverySingleBitChangesIt) {
  auto data = ramp(97);
  const uint64_t before = hash64(data.data(), data.size());
  for (size_t bit = 0; bit < data.size() * 8; ++bit) {
    data[bit / 8] = static_cast<uint8_t>(data[bit / 8] ^ (1u << (bit % 8)));
    EXPECT_NE(hash64(data.data(), data.size()), before) << "bit " << bit;
    data[bit / 8] = static_cast<uint8_t>(data[bit / 8] ^ (1u << (bit % 8)));
  }
}

}  // namespace
/// By its definition, and whoever makes which lanes of which pieces.
TEST(StripedHash64, IsTheHashOfItsLanesHashes) {
  const std::vector<uint8_t> data = ramp(StripedHash64::kBlock * 9 + 1234);
  Hash64 lanes[StripedHash64::kLanes], all;
  for (uint64_t at = 0; at < data.size(); at += StripedHash64::kBlock)
    lanes[at / StripedHash64::kBlock % StripedHash64::kLanes].add(
        data.data() + at, std::min(StripedHash64::kBlock, data.size() - at));
  for (const Hash64& lane : lanes) all.add_u64(lane.value());
  EXPECT_EQ(striped_hash64(data.data(), data.size()), all.value());
  for (const uint32_t step : {1u, 2u, 3u, 4u}) {
    StripedHash64 hash;
    for (uint64_t at = 0, n = 0; at < data.size(); at += n) {
      n = std::min<uint64_t>(data.size() - at, 1 + at * 7 % 100000);
      for (uint32_t first = step; first-- > 0;) hash.add(at, data.data() + at, n, first, step);
    }
    EXPECT_EQ(hash.value(), all.value()) << step;
  }
}

}  // namespace sharpi
