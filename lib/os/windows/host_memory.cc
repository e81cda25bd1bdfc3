// SPDX-License-Identifier: MIT
#include "os/host_memory.h"

#include <algorithm>

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

/// The job of this process, as containers have one, bounds what it may commit.
HostMemory host_memory(const std::string&, const HostMemory& system) {
  HostMemory memory = system;
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION job{};
  if (!QueryInformationJobObject(nullptr, JobObjectExtendedLimitInformation, &job, sizeof job,
                                 nullptr))
    return memory;
  uint64_t most = kNoLimit;
  const DWORD flags = job.BasicLimitInformation.LimitFlags;
  if ((flags & JOB_OBJECT_LIMIT_JOB_MEMORY) != 0)
    most = std::min<uint64_t>(most, job.JobMemoryLimit);
  if ((flags & JOB_OBJECT_LIMIT_PROCESS_MEMORY) != 0)
    most = std::min<uint64_t>(most, job.ProcessMemoryLimit);
  if (most == kNoLimit || most == 0) return memory;
  const uint64_t used = std::min<uint64_t>(most, job.PeakJobMemoryUsed);
  memory.total = std::min(memory.total, most);
  memory.free = std::min(memory.free, std::max<uint64_t>(most - used, 1));
  return memory;
}

}  // namespace sharpi::os
