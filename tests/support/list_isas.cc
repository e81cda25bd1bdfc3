// SPDX-License-Identifier: MIT
// The instruction sets that tests can take this machine for (SHARPI_TEST_ISA), one a line, from
// less to more.
#include <cstdio>

#include "cpu/isa.h"

int main() {
  for (const sharpi::cpu::InstructionSet& set : sharpi::cpu::processor().sets) {
    if (sharpi::cpu::pretend_isa(set.name).is_ok()) std::puts(set.name);
  }
  return 0;
}
