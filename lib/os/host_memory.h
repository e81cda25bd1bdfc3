// SPDX-License-Identifier: MIT
// How much memory the host has and how much of it can be had: what the kernel tells of the machine,
// and what the control groups of this process leave of that.
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>

namespace sharpi::os {

/// What is not known, or not bounded. Never 0: nothing could be planned with that.
constexpr uint64_t kNoLimit = UINT64_MAX;

struct HostMemory {
  uint64_t total = kNoLimit;
  uint64_t free = kNoLimit;  // that can be had without swapping
};

/// By sysinfo(2), which needs no file; the page cache counts as used there.
HostMemory system_memory();
/// By the files below `root`, which is "" but in tests: /proc/meminfo, whose missing numbers are
/// those of `system`, and every group above this process, of cgroup v2 and v1.
HostMemory host_memory(const std::string& root, const HostMemory& system);

}  // namespace sharpi::os
