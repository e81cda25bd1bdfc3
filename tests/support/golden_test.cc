// SPDX-License-Identifier: MIT
#include "golden.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sharpi::testing {
namespace {

TEST(GoldenFile, EveryFixtureAtHandLoadsWithConsistentCases) {
  const FixtureList list = list_fixtures();
  ASSERT_GE(list.available.size(), 3u);  // those tracked beside the tests
  for (const Fixture& fixture : list.available) {
    auto golden = load_golden(fixture.golden_path);
    ASSERT_TRUE(golden.is_ok()) << golden.status().text();
    EXPECT_EQ(golden.value().model, fixture.name + "-q8_0.gguf");
    EXPECT_GE(golden.value().cases.size(), 2u) << fixture.name;
    const auto& trained = trained_models();
    const bool is_trained =
        std::find(trained.begin(), trained.end(), fixture.name) != trained.end();
    EXPECT_EQ(golden.value().needles.size(), is_trained ? 24u : 0u) << fixture.name;
    const bool has_mtp = golden.value().arch.starts_with("qwen35");
    for (const GoldenCase& c : golden.value().cases) {
      EXPECT_EQ(c.greedy.size(), 24u);
      EXPECT_GT(c.nll, 0.5);
      EXPECT_LT(c.nll, is_trained ? 5.0 : 20.0);
      EXPECT_EQ(c.mtp_agrees.has_value(), has_mtp);
      EXPECT_EQ(c.mtp_top5_last.size(), has_mtp ? 5u : 0u);
      for (const auto& row : c.top5_logits) EXPECT_TRUE(std::is_sorted(row.rbegin(), row.rend()));
    }
  }
}

TEST(GoldenFile, ReadsEachFieldAndSkipsUnknownOnes) {
  auto golden = parse_golden(
      R"({"arch":"a\"b","new":{"x":[1,true,null,"s"]},"model":"m.gguf","needles":[{"prompt":[7],)"
      R"("answer":[8,-9]}],"cases":[{"tokens":[3],"top5":[[1,2,3,4,5]],"nll":1.5e0,)"
      R"("top5_logits":[[5,4.5,-1e1,-11,-12]],"greedy":[6],"mtp_agrees":0.5}]} )");
  ASSERT_TRUE(golden.is_ok()) << golden.status().text();
  const Golden& g = golden.value();
  EXPECT_EQ(g.arch, "a\"b");
  EXPECT_EQ(g.needles.at(0).answer, (std::vector<int32_t>{8, -9}));
  EXPECT_EQ(g.cases.at(0).top5.at(0)[4], 5);
  EXPECT_EQ(g.cases.at(0).top5_logits.at(0)[2], -10.0f);
  EXPECT_EQ(g.cases.at(0).nll, 1.5);
  EXPECT_EQ(g.cases.at(0).mtp_agrees, 0.5);
}

TEST(GoldenFile, TruncationAnywhereIsAFormatError) {
  const std::string text =
      R"({"cases":[{"tokens":[3],"top5":[[1,2,3,4,5]],"top5_logits":[[5,4,3,2,1]]}]})";
  ASSERT_TRUE(parse_golden(text).is_ok());
  for (size_t n = 0; n < text.size(); ++n) {
    auto golden = parse_golden(std::string_view(text).substr(0, n));
    ASSERT_FALSE(golden.is_ok()) << n;
    EXPECT_EQ(golden.status().code(), Code::kFormat) << n;
  }
}

TEST(GoldenFile, AnAbsentFileIsNotFoundByName) {
  auto golden = load_golden("no-such-folder/x.golden.json");
  ASSERT_FALSE(golden.is_ok());
  EXPECT_EQ(golden.status().code(), Code::kNotFound);
  EXPECT_NE(golden.status().text().find("x.golden.json"), std::string::npos);
}

TEST(Fixtures, AnUnknownModelIsNotFound) {
  EXPECT_FALSE(find_fixture("tiny-nothing").has_value());
}

}  // namespace
}  // namespace sharpi::testing
