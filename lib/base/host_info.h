// SPDX-License-Identifier: MIT
// Facts about the host: memory, processor name, and the read bandwidth of its memory.
// Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/thread_pool.h"

namespace sharpi {

/// Memory that can be had without swapping (MemAvailable, and what the limits of cgroups leave);
/// UINT64_MAX where that cannot be known.
uint64_t host_free_bytes();
uint64_t host_total_bytes();
std::string host_cpu_name();
/// A number that no other call gives, from the operating system; never UINT64_MAX.
uint64_t host_random();
/// Bytes/s at which the pool's threads together read memory larger than any cache; best of three.
Result<double> measure_read_bandwidth(ThreadPool& pool);

}  // namespace sharpi
