// SPDX-License-Identifier: MIT
// The fuzz target of restore (tests/fuzz/restore_fuzz.cc) on a fixed sequence of forged blobs:
// words of the head become small, large, random or nearly 2^32 numbers, under a checksum that is
// right.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace sharpi::testing {
namespace {

void append(std::vector<uint8_t>* out, uint32_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<uint8_t>(value >> (8 * i)));
}

uint32_t value_of(std::mt19937& random) {
  switch (random() % 4) {
    case 0:
      return static_cast<uint32_t>(random());
    case 1:
      return static_cast<uint32_t>(random() % 128);
    case 2:
      return UINT32_MAX - static_cast<uint32_t>(random() % 8);
    default:
      return static_cast<uint32_t>(random() % 4);
  }
}

TEST(ForgedBlobs, DoNoHarm) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::vector<uint8_t> in{static_cast<uint8_t>(random())};
    for (auto edits = random() % 4 + 1; edits > 0; --edits) {
      const auto word = static_cast<uint32_t>(random() % (random() % 8 != 0 ? 120 : 4000));
      append(&in, random() % 16 == 0 ? 0xFFFFu : word, 2);  // 0xFFFF: another length
      append(&in, value_of(random), 4);
    }
    LLVMFuzzerTestOneInput(in.data(), in.size());  // ends the program where something is wrong
  }
}

}  // namespace
}  // namespace sharpi::testing
