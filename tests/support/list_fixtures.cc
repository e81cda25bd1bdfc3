// SPDX-License-Identifier: MIT
// Says which trained models the tests did not find, in one line; nothing if all are at hand.
#include <cstdio>

#include "support/golden.h"

int main() {
  const std::string text = sharpi::testing::missing_fixtures_text(sharpi::testing::list_fixtures());
  if (!text.empty()) std::printf("Fixtures %s\n", text.c_str());
  return 0;
}
