// SPDX-License-Identifier: MIT
#include "os/host_memory.h"

#include <algorithm>

#include "os/windows/job_memory.h"
#include "os/windows/system.h"

namespace sharpi::os {

HostMemory system_memory() {
  MEMORYSTATUSEX status{};
  status.dwLength = sizeof status;
  HostMemory memory;
  if (!GlobalMemoryStatusEx(&status) || status.ullTotalPhys == 0) return memory;
  memory.total = status.ullTotalPhys;
  // What can still be committed counts too: memory is charged when it is asked for, not when
  // touched.
  memory.free = std::min(status.ullAvailPhys, status.ullAvailPageFile);
  return memory;
}

/// The job of this process bounds what it may commit.
HostMemory host_memory(const std::string&, const HostMemory& system) {
  return within_job(job_memory(), system);
}

}  // namespace sharpi::os
