// SPDX-License-Identifier: MIT
#include "os/processors.h"

#include <sched.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>

#include "os/linux/control_groups.h"
#include "os/linux/text_lines.h"

namespace sharpi::os {
namespace {

/// Processors of this process's affinity.
uint32_t affine_cpus() {
  for (size_t n_cpus = 1024; n_cpus <= (size_t{1} << 20); n_cpus *= 2) {
    cpu_set_t* set = CPU_ALLOC(n_cpus);
    if (set == nullptr) break;
    const size_t bytes = CPU_ALLOC_SIZE(n_cpus);
    const int rc = sched_getaffinity(0, bytes, set);
    const int error = errno;
    const int count = rc == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (rc == 0) return count > 0 ? static_cast<uint32_t>(count) : 1;
    if (error != EINVAL) break;  // EINVAL: the kernel's mask is wider than ours
  }
  return 1;
}

}  // namespace

uint32_t usable_cpus() {
  const uint32_t n = affine_cpus();
  const double quota = std::ceil(cpu_quota(""));
  return quota < n ? std::max(1u, static_cast<uint32_t>(quota)) : n;
}

std::string cpu_name() {
  TextLines in("/proc/cpuinfo");
  std::string line, implementer, part;
  while (in.next(&line)) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) return value;
    // aarch64 has numbers instead, for each processor.
    if (line.starts_with("CPU implementer")) implementer = value;
    if (line.starts_with("CPU part")) part = value;
  }
  if (implementer.empty() || part.empty()) return "CPU";
  return "aarch64 (implementer " + implementer + ", part " + part + ")";
}

ArmExtensions arm_extensions() {
  ArmExtensions x;
#if defined(__aarch64__)
  // Bits that headers of older systems do not name.
  constexpr unsigned long kDotProducts = 1ul << 20, kI8mm2 = 1ul << 13, kBf16In2 = 1ul << 14;
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  x.dot_products = (first & kDotProducts) != 0;
  x.int8_matrices = (second & kI8mm2) != 0;
  x.bf16 = (second & kBf16In2) != 0;
#endif
  return x;
}

bool request_tile_registers() {
#if defined(__x86_64__)
  // Linux hands the 8 KiB of tile state out on request only.
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
#else
  return false;
#endif
}

}  // namespace sharpi::os
