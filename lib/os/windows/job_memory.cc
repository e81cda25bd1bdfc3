// SPDX-License-Identifier: MIT
#include "os/windows/job_memory.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

#include "os/windows/system.h"
// After the system's header, which it needs.
#include <psapi.h>

namespace sharpi::os {
namespace {

/// What a process has committed; kNoLimit where it cannot be asked, or the system says nothing.
uint64_t committed_by(HANDLE process) {
  PROCESS_MEMORY_COUNTERS_EX now{};
  now.cb = sizeof now;
  auto* counters = reinterpret_cast<PROCESS_MEMORY_COUNTERS*>(&now);
  if (!K32GetProcessMemoryInfo(process, counters, sizeof now) || now.PrivateUsage == 0)
    return kNoLimit;
  return now.PrivateUsage;
}

uint64_t committed_by_number(DWORD number) {
  const HANDLE process = OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, FALSE, number);
  if (process == nullptr) {
    // One that ended since the list was made has nothing any more.
    return GetLastError() == ERROR_INVALID_PARAMETER ? 0 : kNoLimit;
  }
  const uint64_t bytes = committed_by(process);
  CloseHandle(process);
  return bytes;
}

/// The numbers of the processes of a job; false where the system does not say.
bool processes_of_job(HANDLE job, std::vector<DWORD>* numbers) {
  for (size_t room = 64; room <= 65536; room *= 4) {
    const size_t bytes =
        offsetof(JOBOBJECT_BASIC_PROCESS_ID_LIST, ProcessIdList) + room * sizeof(ULONG_PTR);
    const std::unique_ptr<std::byte[]> block(new std::byte[bytes]());
    auto* list = reinterpret_cast<JOBOBJECT_BASIC_PROCESS_ID_LIST*>(block.get());
    if (QueryInformationJobObject(job, JobObjectBasicProcessIdList, list, static_cast<DWORD>(bytes),
                                  nullptr)) {
      for (DWORD i = 0; i < list->NumberOfProcessIdsInList; ++i)
        numbers->push_back(static_cast<DWORD>(list->ProcessIdList[i]));
      return !numbers->empty();  // this one at least is in it
    }
    if (GetLastError() != ERROR_MORE_DATA) return false;
  }
  return false;
}

}  // namespace

uint64_t committed_by_job(void* job, uint64_t peak) {
  std::vector<DWORD> numbers;
  if (!processes_of_job(job, &numbers)) return peak;
  uint64_t sum = 0;
  for (const DWORD number : numbers) {
    const uint64_t bytes = committed_by_number(number);
    if (bytes == kNoLimit) return peak;
    sum += bytes;
  }
  return sum;
}

JobMemory job_memory() {
  JobMemory job;
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION info{};
  if (!QueryInformationJobObject(nullptr, JobObjectExtendedLimitInformation, &info, sizeof info,
                                 nullptr))
    return job;
  const DWORD flags = info.BasicLimitInformation.LimitFlags;
  if ((flags & JOB_OBJECT_LIMIT_PROCESS_MEMORY) != 0) {
    job.process_limit = info.ProcessMemoryLimit;
    const uint64_t used = committed_by(GetCurrentProcess());
    job.process_used = used == kNoLimit ? info.PeakProcessMemoryUsed : used;
  }
  if ((flags & JOB_OBJECT_LIMIT_JOB_MEMORY) != 0) {
    job.job_limit = info.JobMemoryLimit;
    job.job_used = committed_by_job(nullptr, info.PeakJobMemoryUsed);
  }
  return job;
}

HostMemory within_job(const JobMemory& job, const HostMemory& memory) {
  HostMemory out = memory;
  const auto bound = [&](uint64_t limit, uint64_t used) {
    if (limit == kNoLimit || limit == 0) return;
    out.total = std::min(out.total, limit);
    out.free = std::min(out.free, std::max<uint64_t>(limit - std::min(limit, used), 1));
  };
  bound(job.process_limit, job.process_used);
  bound(job.job_limit, job.job_used);
  return out;
}

}  // namespace sharpi::os
