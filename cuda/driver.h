// SPDX-License-Identifier: MIT
// Functions of the CUDA driver, which is found at run time.
// Thread rule: pure functions, on the current device.
#pragma once

#include "base/status.h"

namespace sharpi::cuda {

/// The address of a driver function in its form of `version` (1000 * major + 10 * minor).
Status find_entry(const char* name, unsigned version, void** out);
/// The function there; F: its PFN_ type.
template <class F>
F entry(void* address) {
  return reinterpret_cast<F>(address);
}

/// Brings the code of every kernel to the current device, of this compute capability (10 * major +
/// minor). Again: does nothing.
Status load_kernels(int capability);

}  // namespace sharpi::cuda
