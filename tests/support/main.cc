// SPDX-License-Identifier: MIT
// The main function of every GoogleTest program. A program with a failed case exits with 1. It
// exits with 77, which CTest shows as "skipped", if nothing of it ran: every case was skipped, or
// the environment of all cases was. GoogleTest itself says 0 to both, and counts cases whose
// environment was skipped as passed. The same where models were to be on a GPU (SHARPI_TEST_TIER)
// and there is none, for then the few cases that need no model prove nothing.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kExitSkipped = 77;

/// Whether a part of the result is a skip whose reason contains the words.
bool is_skipped(const ::testing::TestResult& result, const char* words) {
  for (int i = 0; i < result.total_part_count(); ++i) {
    const ::testing::TestPartResult& part = result.GetTestPartResult(i);
    if (part.skipped() && std::strstr(part.message(), words) != nullptr) return true;
  }
  return false;
}

bool any_case_lacks_a_device(const ::testing::UnitTest& tests) {
  for (int s = 0; s < tests.total_test_suite_count(); ++s) {
    const ::testing::TestSuite& suite = *tests.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      if (is_skipped(*suite.GetTestInfo(t)->result(), "no GPU")) return true;
    }
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (RUN_ALL_TESTS() != 0) return 1;
  const ::testing::UnitTest& tests = *::testing::UnitTest::GetInstance();
  if (is_skipped(tests.ad_hoc_test_result(), "")) return kExitSkipped;  // the environment
  if (tests.skipped_test_count() == 0) return 0;
  const bool nothing_ran = tests.successful_test_count() == 0;
  const bool no_gpu = std::getenv("SHARPI_TEST_TIER") != nullptr && any_case_lacks_a_device(tests);
  return nothing_ran || no_gpu ? kExitSkipped : 0;
}
