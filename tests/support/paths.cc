// SPDX-License-Identifier: MIT
#include "support/paths.h"

#include <cstdlib>

namespace sharpi::test {
namespace {

/// Programs that were carried to another machine are told where their files are there.
std::string below(const char* variable, const char* built, std::string_view relative) {
  const char* told = std::getenv(variable);
  std::string path = told != nullptr && *told != '\0' ? told : built;
  return path.append("/").append(relative);
}

}  // namespace

std::string source_path(std::string_view relative) {
  return below("SHARPI_TEST_SOURCE", SHARPI_TEST_SOURCE, relative);
}

std::string build_path(std::string_view relative) {
  return below("SHARPI_TEST_BUILD", SHARPI_TEST_BUILD, relative);
}

std::string_view suites_tier() {
  const char* tier = std::getenv("SHARPI_TEST_TIER");
  return tier == nullptr ? "" : tier;
}

bool suites_on_gpu() {
  return suites_tier() == "cuda" || suites_tier() == "vulkan";
}

}  // namespace sharpi::test
