// SPDX-License-Identifier: MIT
#include "support/turn.h"

#include <set>
#include <string>

namespace sharpi::testing {
namespace {

TEST(Turns, EverythingRunsUnlessACommitIsNamed) {
  for (const char* text : {static_cast<const char*>(nullptr), "", "all"}) {
    const Turn turn(text, 1, 3);
    EXPECT_TRUE(turn.whole());
    for (uint64_t i = 0; i < 6; ++i) EXPECT_TRUE(turn.has(i));
  }
}

TEST(Turns, OneOfThePartsRunsAndOffsetsHaveTheOthers) {
  const char* commit = "6e8386d2f6c2a9a3";
  for (uint64_t i = 0; i < 24; ++i) {
    uint32_t n = 0;
    for (uint64_t offset = 0; offset < 3; ++offset) {
      const Turn turn(commit, offset, 3);
      EXPECT_FALSE(turn.whole());
      n += turn.has(i) ? 1 : 0;
    }
    EXPECT_EQ(n, 1u) << i;
  }
}

TEST(Turns, CommitsTakeThemEvenly) {
  for (const uint32_t parts : {2u, 3u, 5u}) {
    std::vector<uint32_t> count(parts);
    for (int i = 0; i < 600; ++i) ++count[Turn(std::to_string(i * 7919).c_str(), 0, parts).part()];
    for (const uint32_t n : count) {
      EXPECT_GT(n, 450 / parts);
      EXPECT_LT(n, 750 / parts);
    }
  }
}

}  // namespace
}  // namespace sharpi::testing
