// SPDX-License-Identifier: MIT
// What the job of this process, as containers have one, leaves it of the machine's memory.
// Thread rule: any thread.
#pragma once

#include <cstdint>

#include "os/host_memory.h"

namespace sharpi::os {

/// Limits of what may be committed, and how much is committed now, in bytes.
struct JobMemory {
  uint64_t process_limit = kNoLimit, process_used = 0;  // of this process alone
  uint64_t job_limit = kNoLimit, job_used = 0;          // of all processes of the job
};

/// Of the job that this process is in.
JobMemory job_memory();
/// What all processes of a job, by its handle, have committed now; null: the job that this process
/// is in. `peak` where one of them cannot be asked, for it is no less.
uint64_t committed_by_job(void* job, uint64_t peak);
/// Makes `memory` as small as both limits have it; free is never 0.
HostMemory within_job(const JobMemory& job, const HostMemory& memory);

}  // namespace sharpi::os
