// SPDX-License-Identifier: MIT
// Processors that no kernels but those in plain C++ are written for.
#include "cpu/kernel_set.h"

namespace sharpi::cpu {

std::span<const KernelSet* const> processor_kernel_sets() {
  return {};
}

}  // namespace sharpi::cpu
