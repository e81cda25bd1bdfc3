// SPDX-License-Identifier: MIT
#include "support/pretended_isa.h"

#include <cstdio>
#include <cstdlib>

#include "cpu/isa.h"

namespace sharpi::test {
namespace {

[[noreturn]] void refuse(const char* text, const char* why) {
  std::fprintf(stderr, "SHARPI_TEST_ISA=%s: %s; the sets are", text, why);
  for (const cpu::InstructionSet& set : cpu::processor().sets)
    std::fprintf(stderr, " %s", set.name);
  std::fprintf(stderr, "\n");
  std::_Exit(2);
}

const bool kPretended = (pretend_isa_of_environment(), true);

}  // namespace

void pretend_isa_of_environment() {
  const char* text = std::getenv("SHARPI_TEST_ISA");
  if (text == nullptr || *text == '\0') {
    (void)cpu::pretend_isa(nullptr);
    return;
  }
  const Status status = cpu::pretend_isa(text);
  if (!status.is_ok()) refuse(text, status.text().c_str());
  std::fprintf(stderr, "the processor is taken for one with %s at most\n", text);
}

}  // namespace sharpi::test
