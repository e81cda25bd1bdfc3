// SPDX-License-Identifier: MIT
// Templates that nearly every test instantiates for the same types. The precompiled header declares
// them as instantiated elsewhere, which is tests/support/instances.cc, so that not every object
// compiles its own copy. (C++20 mode of GCC's library makes even std::string such a template.)
//
// Expects SHARPI_TEST_INSTANCE: `extern template` to declare, `template` to instantiate.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

SHARPI_TEST_INSTANCE class std::basic_string<char>;
SHARPI_TEST_INSTANCE class std::unique_ptr<std::string>;
SHARPI_TEST_INSTANCE class std::unique_ptr<std::stringstream>;
SHARPI_TEST_INSTANCE class std::vector<char>;
SHARPI_TEST_INSTANCE class std::vector<std::byte>;
SHARPI_TEST_INSTANCE class std::vector<int32_t>;
SHARPI_TEST_INSTANCE class std::vector<uint32_t>;
SHARPI_TEST_INSTANCE class std::vector<float>;
SHARPI_TEST_INSTANCE class std::vector<double>;
SHARPI_TEST_INSTANCE class std::vector<std::string>;

// What EXPECT_EQ, EXPECT_LT and so on say when they fail.
#define SHARPI_TEST_COMPARISON(A, B)                                                           \
  SHARPI_TEST_INSTANCE ::testing::AssertionResult testing::internal::CmpHelperEQFailure<A, B>( \
      const char*, const char*, const A&, const B&);                                           \
  SHARPI_TEST_INSTANCE ::testing::AssertionResult testing::internal::CmpHelperOpFailure<A, B>( \
      const char*, const char*, const A&, const B&, const char*);
SHARPI_TEST_COMPARISON(int32_t, int32_t)
SHARPI_TEST_COMPARISON(uint32_t, uint32_t)
SHARPI_TEST_COMPARISON(uint64_t, uint32_t)
SHARPI_TEST_COMPARISON(uint64_t, uint64_t)
SHARPI_TEST_COMPARISON(float, float)
SHARPI_TEST_COMPARISON(double, double)
SHARPI_TEST_COMPARISON(std::string, std::string)
#undef SHARPI_TEST_COMPARISON
#undef SHARPI_TEST_INSTANCE
