// SPDX-License-Identifier: MIT
#include "os/host_memory.h"

#include <mach/mach.h>
#include <sys/sysctl.h>

#include <algorithm>

#include "os/pages.h"

namespace sharpi::os {

HostMemory system_memory() {
  HostMemory memory;
  uint64_t total = 0;
  size_t size = sizeof total;
  if (sysctlbyname("hw.memsize", &total, &size, nullptr, 0) != 0 || total == 0) return memory;
  memory.total = total;
  vm_statistics64_data_t pages{};
  mach_msg_type_number_t count = HOST_VM_INFO64_COUNT;
  const mach_port_t host = mach_host_self();
  const kern_return_t said =
      host_statistics64(host, HOST_VM_INFO64, reinterpret_cast<host_info64_t>(&pages), &count);
  mach_port_deallocate(mach_task_self(), host);
  if (said != KERN_SUCCESS) return memory;
  // Pages of files that were not used lately go before anything is compressed or swapped.
  const uint64_t files = std::min<uint64_t>(pages.external_page_count, pages.inactive_count);
  memory.free = (uint64_t{pages.free_count} + pages.purgeable_count + files) * page_size();
  memory.free = std::clamp<uint64_t>(memory.free, 1, total);
  return memory;
}

/// No group of processes has a limit of its own here.
HostMemory host_memory(const std::string&, const HostMemory& system) {
  return system;
}

}  // namespace sharpi::os
