// SPDX-License-Identifier: MIT
// What the system says of the machine's processors. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <string>

namespace sharpi::os {

/// Processors that this process may use at the same time, at least one: those of its affinity, but
/// no more than the CPU quotas of its control groups have any use for. A quota of one and a half
/// takes two.
uint32_t usable_cpus();

std::string cpu_name();

/// Asks for the process's use of the tile registers of AMX, threads that run already included.
/// Asking again is harmless.
bool request_tile_registers();

}  // namespace sharpi::os
