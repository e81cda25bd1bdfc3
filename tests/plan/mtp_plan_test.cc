// SPDX-License-Identifier: MIT
// Where the block for multi-token prediction may be: with a head on the CPU. A request for it is
// refused otherwise, `auto` goes without.
#include "plan/paper_tier.h"

namespace sharpi {
namespace {

using MtpPlan = test::Solving;

TEST_F(MtpPlan, GoesWithAHeadOnTheCpuOnly) {
  const auto spec = spec_of(test::tiny_qwen35());
  refused(spec, {.device = kPlenty, .drafters = SHARPI_DRAFT_MTP}, Code::kUnsupported,
          "place the head on the CPU (gpu_ends 0");
  const auto by_itself = must(spec, {.device = kPlenty, .drafters = SHARPI_DRAFT_AUTO});
  EXPECT_EQ(by_itself->session.drafters, SHARPI_DRAFT_NGRAM);
  EXPECT_FALSE(by_itself->placement.mtp);
  ASSERT_EQ(by_itself->fallbacks.size(), 1u);
  EXPECT_EQ(by_itself->fallbacks[0].find("the MTP drafter is left out: drafters has MTP, whose"),
            0u)
      << by_itself->fallbacks[0];
  const uint32_t both = SHARPI_DRAFT_MTP | SHARPI_DRAFT_NGRAM;
  for (const uint32_t drafters : {both, SHARPI_DRAFT_AUTO}) {
    const auto split = must(spec, {.ends = 0, .device = kPlenty, .drafters = drafters});
    EXPECT_TRUE(split->placement.mtp);
    EXPECT_EQ(split->session.drafters, both);
  }
}

}  // namespace
}  // namespace sharpi
