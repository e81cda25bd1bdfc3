// SPDX-License-Identifier: MIT
// Functions of the CUDA driver, which is found at run time.
// Thread rule: pure functions, on the current device.
#pragma once

#include <string>

#include "base/status.h"

namespace sharpi::cuda {

/// What a driver that offers this version of CUDA (1000 * major + 10 * minor, 0 = none is
/// installed) lacks for this build: empty if it will do. The tier calls functions of CUDA 12.4,
/// which came with driver 550; a build with a toolkit of a later major version needs the driver of
/// that version.
std::string driver_refusal(int version);

/// The address of a driver function in its form of `version` (1000 * major + 10 * minor).
Status find_entry(const char* name, unsigned version, void** out);
/// The function at an address from find_entry(); F is its PFN_ type.
template <class F>
F entry(void* address) {
  return reinterpret_cast<F>(address);
}

/// Brings the code of every kernel to the current device, which has this compute capability (10 *
/// major + minor). A second call does nothing.
Status load_kernels(int capability);

}  // namespace sharpi::cuda
