// SPDX-License-Identifier: MIT
// What the control groups (cgroups) of this process, and all groups above them, allow it: memory
// and processor time. Read from files below `root`, which is "" but in tests.
// Thread rule: any thread.
#pragma once

#include <string>

#include "base/host_memory.h"

namespace sharpi {

/// Makes `memory` as small as each of the groups has it.
void apply_memory_limits(const std::string& root, HostMemory* memory);

/// How many processors' worth of time the smallest quota of the groups is; infinity without any.
double cpu_quota(const std::string& root);

/// Processors that this process may use at the same time, at least one: those of its affinity, but
/// no more than the quota has any use for. A quota of one and a half takes two.
uint32_t usable_cpus();

}  // namespace sharpi
