// SPDX-License-Identifier: MIT
#include "os/dynamic_library.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace sharpi::os {
namespace {

#if defined(_WIN32)
constexpr const char *kMissing = "sharpi-no-such-library.dll", *kMath = "msvcrt.dll";
#else
constexpr const char *kMissing = "libsharpi-no-such-library.so", *kMath = "libm.so.6";
#endif

TEST(DynamicLibrary, TheFirstFileThatExistsIsOpened) {
  DynamicLibrary library;
  ASSERT_TRUE(library.open({kMissing, kMath}));
  EXPECT_EQ(library.name(), kMath);
  auto* cosine = reinterpret_cast<double (*)(double)>(library.symbol("cos"));
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(1.0), std::cos(1.0));
  EXPECT_EQ(library.symbol("sharpi_no_such_symbol"), nullptr);
  EXPECT_FALSE(library.open({kMissing}));
  EXPECT_EQ(library.name(), kMath);
}

TEST(DynamicLibrary, NothingIsNoLibrary) {
  DynamicLibrary library;
  EXPECT_FALSE(library.open({kMissing}));
  EXPECT_FALSE(library.open({}));
  EXPECT_EQ(library.name(), "");
  EXPECT_EQ(library.symbol("cos"), nullptr);
}

TEST(DynamicLibrary, FilesAreNamedAsVendorsNameThem) {
#if defined(_WIN32)
  EXPECT_EQ(library_file("cublasLt", "13"), "cublasLt64_13.dll");
  EXPECT_EQ(library_file("cublasLt", ""), "cublasLt.dll");
#else
  EXPECT_EQ(library_file("cublasLt", "13"), "libcublasLt.so.13");
  EXPECT_EQ(library_file("cublasLt", ""), "libcublasLt.so");
#endif
}

}  // namespace
}  // namespace sharpi::os
