// SPDX-License-Identifier: MIT
#include "cpu/isa.h"

#include <gtest/gtest.h>

namespace sharpi::cpu {
namespace {

TEST(Isa, AutoResolvesToSomethingThatRuns) {
  const Result<Isa> isa = resolve_isa(Isa::kAuto);
  ASSERT_TRUE(isa.is_ok());
  EXPECT_NE(isa.value(), Isa::kAuto);
  EXPECT_TRUE(resolve_isa(isa.value()).is_ok());
}

TEST(Isa, AnUnknownNumberIsRefused) {
  EXPECT_EQ(resolve_isa(static_cast<Isa>(99)).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace sharpi::cpu
