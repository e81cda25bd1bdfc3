// SPDX-License-Identifier: MIT
#include "support/paths.h"

namespace sharpi::test {

std::string source_path(std::string_view relative) {
  return std::string(SHARPI_TEST_SOURCE "/").append(relative);
}

std::string build_path(std::string_view relative) {
  return std::string(SHARPI_TEST_BUILD "/").append(relative);
}

}  // namespace sharpi::test
