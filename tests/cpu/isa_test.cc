// SPDX-License-Identifier: MIT
#include "cpu/isa.h"

#include <gtest/gtest.h>

#include "support/pretended_isa.h"

namespace sharpi::cpu {
namespace {

using test::IsaSet;
using test::kIsaSets;

/// The machine is taken again for what the environment says when a case has ended.
class PretendedIsa : public testing::Test {
 protected:
  void TearDown() override { test::pretend_isa_of_environment(); }
};

TEST(Isa, AutoResolvesToSomethingThatRuns) {
  const Result<Isa> isa = resolve_isa(Isa::kAuto);
  ASSERT_TRUE(isa.is_ok());
  EXPECT_NE(isa.value(), Isa::kAuto);
  EXPECT_TRUE(resolve_isa(isa.value()).is_ok());
}

TEST(Isa, AnUnknownNumberIsRefused) {
  EXPECT_EQ(resolve_isa(static_cast<Isa>(99)).status().code(), Code::kUnsupported);
}

TEST_F(PretendedIsa, BoundsWhatIsChosenAndWhatMayBeAskedFor) {
  for (const IsaSet& set : kIsaSets) {
    if (!pretend_isa(set.widest, set.bf16_dots).is_ok()) continue;
    SCOPED_TRACE(set.name);
    EXPECT_EQ(resolve_isa(Isa::kAuto).value(), set.widest);
    EXPECT_EQ(has_bf16_dots(), set.bf16_dots);
    bool beyond = false;
    for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      EXPECT_EQ(resolve_isa(isa).is_ok(), !beyond) << isa_name(isa);
      beyond = beyond || isa == set.widest;
    }
  }
}

/// What a machine is taken for does not bound what it is taken for next.
TEST_F(PretendedIsa, IsMeasuredByTheRealMachine) {
  ASSERT_TRUE(pretend_isa(Isa::kAuto, true).is_ok());
  const Isa widest = resolve_isa(Isa::kAuto).value();
  const bool bf16_dots = has_bf16_dots();
  ASSERT_TRUE(pretend_isa(Isa::kScalar, false).is_ok());
  EXPECT_EQ(resolve_isa(Isa::kAuto).value(), Isa::kScalar);
  EXPECT_TRUE(pretend_isa(widest, bf16_dots).is_ok());
  EXPECT_EQ(resolve_isa(Isa::kAuto).value(), widest);
}

TEST_F(PretendedIsa, OfMoreThanThereIsIsRefusedAndChangesNothing) {
  ASSERT_TRUE(pretend_isa(Isa::kScalar, false).is_ok());
  EXPECT_EQ(pretend_isa(Isa::kScalar, true).code(), Code::kUnsupported);
  EXPECT_EQ(pretend_isa(Isa::kAvx2, true).code(), Code::kUnsupported);
  EXPECT_EQ(pretend_isa(static_cast<Isa>(99), false).code(), Code::kUnsupported);
  EXPECT_EQ(resolve_isa(Isa::kAuto).value(), Isa::kScalar);
  EXPECT_FALSE(has_bf16_dots());
}

}  // namespace
}  // namespace sharpi::cpu
