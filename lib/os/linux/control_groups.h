// SPDX-License-Identifier: MIT
// What the control groups (cgroups) of this process, and all groups above them, allow it: memory
// and processor time. Read from files below `root`, which is "" but in tests.
// Thread rule: any thread.
#pragma once

#include <string>

#include "os/host_memory.h"

namespace sharpi::os {

/// Makes `memory` as small as each of the groups has it.
void apply_memory_limits(const std::string& root, HostMemory* memory);

/// How many processors' worth of time the smallest quota of the groups is; infinity without any.
double cpu_quota(const std::string& root);

}  // namespace sharpi::os
