// SPDX-License-Identifier: MIT
#include "support/pretended_isa.h"

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace sharpi::test {
namespace {

[[noreturn]] void refuse(const char* text, const char* why) {
  std::fprintf(stderr, "SHARPI_TEST_ISA=%s: %s; the sets are", text, why);
  for (const IsaSet& set : kIsaSets) std::fprintf(stderr, " %s", set.name);
  std::fprintf(stderr, "\n");
  std::_Exit(2);
}

const bool kPretended = (pretend_isa_of_environment(), true);

}  // namespace

void pretend_isa_of_environment() {
  const char* text = std::getenv("SHARPI_TEST_ISA");
  if (text == nullptr || *text == '\0') {
    (void)cpu::pretend_isa(cpu::Isa::kAuto, true);
    return;
  }
  for (const IsaSet& set : kIsaSets) {
    if (std::string_view(text) != set.name) continue;
    const Status status = cpu::pretend_isa(set.widest, set.bf16_dots);
    if (!status.is_ok()) refuse(text, status.text().c_str());
    std::fprintf(stderr, "the processor is taken for one with %s at most\n", set.name);
    return;
  }
  refuse(text, "no such instruction set");
}

}  // namespace sharpi::test
