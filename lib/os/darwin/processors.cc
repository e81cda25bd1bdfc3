// SPDX-License-Identifier: MIT
#include "os/processors.h"

#include <sys/sysctl.h>

#include <algorithm>
#include <cstddef>

namespace sharpi::os {
namespace {

/// A number that the system has under a name; 0 without one.
uint32_t number_of(const char* name) {
  int32_t number = 0;
  size_t size = sizeof number;
  if (sysctlbyname(name, &number, &size, nullptr, 0) != 0 || size != sizeof number) return 0;
  return static_cast<uint32_t>(std::max(number, 0));
}

}  // namespace

uint32_t usable_cpus() {
  // A processor has no affinity here, and no quota.
  return std::max(number_of("hw.activecpu"), 1u);
}

std::string cpu_name() {
  char text[256];
  size_t size = sizeof text;
  if (sysctlbyname("machdep.cpu.brand_string", text, &size, nullptr, 0) != 0 || size < 2)
    return "CPU";
  return std::string(text, size - 1);
}

ArmExtensions arm_extensions() {
  ArmExtensions x;
#if defined(__aarch64__)
  x.dot_products = number_of("hw.optional.arm.FEAT_DotProd") != 0;
  x.int8_matrices = number_of("hw.optional.arm.FEAT_I8MM") != 0;
  x.bf16 = number_of("hw.optional.arm.FEAT_BF16") != 0;
#endif
  return x;
}

bool request_tile_registers() {
  return false;  // none of these machines has AMX of x86
}

}  // namespace sharpi::os
