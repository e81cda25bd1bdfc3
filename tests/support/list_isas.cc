// SPDX-License-Identifier: MIT
// The instruction sets that tests can take this machine for (SHARPI_TEST_ISA), one a line, from
// less to more.
#include <cstdio>

#include "support/pretended_isa.h"

int main() {
  for (const sharpi::test::IsaSet& set : sharpi::test::kIsaSets) {
    if (sharpi::cpu::pretend_isa(set.widest, set.bf16_dots).is_ok()) std::puts(set.name);
  }
  return 0;
}
