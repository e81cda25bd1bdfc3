// SPDX-License-Identifier: MIT
// Checksums of blobs by any number of threads.
#include "engine/blob_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sharpi {
namespace {

std::vector<uint8_t> noise(uint64_t n) {
  std::vector<uint8_t> out(n);
  uint32_t x = 1;
  for (uint8_t& b : out) b = static_cast<uint8_t>((x = x * 1664525 + 1013904223) >> 24);
  return out;
}

class BlobSums : public ::testing::TestWithParam<uint32_t> {};

TEST_P(BlobSums, OfAnyPiecesAreThatOfTheWhole) {
  const std::vector<uint8_t> data = noise(5u << 20);
  const uint64_t whole = striped_hash64(data.data(), data.size());
  for (const uint64_t most : {data.size(), uint64_t{256} << 10, uint64_t{40000}, uint64_t{9000}}) {
    BlobSum sum;
    sum.begin_with(GetParam());
    for (uint64_t at = 0, n = 0, i = 0; at < data.size(); at += n, ++i) {
      n = std::min<uint64_t>(data.size() - at, i % 5 == 4 ? 72 : most);
      if (i % 7 == 6)
        sum.add(data.data() + at, n);
      else
        sum.start(data.data() + at, n);
      if (i % 3 == 0) sum.wait();
    }
    EXPECT_EQ(sum.value(), whole) << most;
    EXPECT_EQ(sum.value(), whole) << "asked again";
  }
}

/// A piece may be another's as soon as the next one is started.
TEST_P(BlobSums, APieceIsReadBeforeTheNextOneIsStarted) {
  const std::vector<uint8_t> data = noise(4u << 20);
  constexpr uint64_t kPiece = 256 << 10;
  std::vector<uint8_t> places[2] = {std::vector<uint8_t>(kPiece), std::vector<uint8_t>(kPiece)};
  BlobSum sum;
  sum.begin_with(GetParam());
  for (uint64_t at = 0; at < data.size(); at += kPiece) {
    std::vector<uint8_t>& place = places[at / kPiece % 2];
    std::copy_n(data.begin() + static_cast<long>(at), kPiece, place.begin());
    sum.start(place.data(), kPiece);
  }
  EXPECT_EQ(sum.value(), striped_hash64(data.data(), data.size()));
}

INSTANTIATE_TEST_SUITE_P(Threads, BlobSums, ::testing::Values(0u, 1u, 2u, 3u, 4u, 9u));

}  // namespace
}  // namespace sharpi
