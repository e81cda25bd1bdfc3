// SPDX-License-Identifier: MIT
#include "os/host_memory.h"

#include <sys/sysinfo.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "os/linux/control_groups.h"
#include "os/linux/text_lines.h"

namespace sharpi::os {
namespace {

/// The product, or the largest number.
uint64_t times(uint64_t a, uint64_t b) {
  uint64_t n = 0;
  return __builtin_mul_overflow(a, b, &n) ? UINT64_MAX : n;
}

/// The number of a line of /proc/meminfo, in bytes; `otherwise` where there is no such line.
uint64_t meminfo(const std::string& root, std::string_view field, uint64_t otherwise) {
  TextLines in(root + "/proc/meminfo");
  std::string line;
  while (in.next(&line)) {
    if (!line.starts_with(field)) continue;
    const size_t digits = std::min(line.find_first_not_of(" \t", field.size()), line.size());
    uint64_t kib = 0;
    const char* end = line.data() + line.size();
    if (std::from_chars(line.data() + digits, end, kib).ec != std::errc()) break;
    return times(kib, 1024);
  }
  return otherwise;
}

}  // namespace

HostMemory system_memory() {
  struct sysinfo info {};
  HostMemory memory;
  if (sysinfo(&info) != 0 || info.totalram == 0) return memory;
  const uint64_t unit = info.mem_unit == 0 ? 1 : info.mem_unit;
  memory.total = times(info.totalram, unit);
  memory.free = times(uint64_t{info.freeram} + info.bufferram, unit);
  return memory;
}

HostMemory host_memory(const std::string& root, const HostMemory& system) {
  // Missing are they in a chroot, under systemd's ProcSubset=pid, without file descriptors, and
  // MemAvailable in old kernels and some sandboxes.
  HostMemory memory{meminfo(root, "MemTotal:", system.total),
                    meminfo(root, "MemAvailable:", system.free)};
  apply_memory_limits(root, &memory);
  return memory;
}

}  // namespace sharpi::os
