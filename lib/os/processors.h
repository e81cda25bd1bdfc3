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

/// "CPU" where the system does not say.
std::string cpu_name();

/// What an aarch64 processor has beside NEON, as the system says; nothing on others.
struct ArmExtensions {
  bool dot_products = false;   // of four signed bytes (FEAT_DotProd)
  bool int8_matrices = false;  // FEAT_I8MM
  bool bf16 = false;           // conversions, dot products and matrices (FEAT_BF16)
};
ArmExtensions arm_extensions();

/// Asks for the process's use of the tile registers of AMX, threads that run already included.
/// Asking again is harmless.
bool request_tile_registers();

}  // namespace sharpi::os
