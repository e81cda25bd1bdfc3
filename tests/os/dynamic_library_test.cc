// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sharpi::os {
namespace {

TEST(DynamicLibrary, TheFirstNameThatExistsIsOpened) {
  DynamicLibrary library;
  ASSERT_TRUE(library.open({"libsharpi-no-such-library.so", "libm.so.6"}));
  EXPECT_STREQ(library.name(), "libm.so.6");
  auto* cosine = reinterpret_cast<double (*)(double)>(library.symbol("cos"));
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(1.0), std::cos(1.0));
  EXPECT_EQ(library.symbol("sharpi_no_such_symbol"), nullptr);
}

TEST(DynamicLibrary, NothingIsNoLibrary) {
  DynamicLibrary library;
  EXPECT_FALSE(library.open({"libsharpi-no-such-library.so"}));
  EXPECT_FALSE(library.open({}));
  EXPECT_EQ(library.symbol("cos"), nullptr);
}

}  // namespace
}  // namespace sharpi::os
