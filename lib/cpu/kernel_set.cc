// SPDX-License-Identifier: MIT
#include "cpu/kernel_set.h"

#include <string_view>

namespace sharpi::cpu {

const KernelSet& kernel_set(const InstructionSet& set) {
  for (const KernelSet* kernels : processor_kernel_sets()) {
    if (std::string_view(kernels->name) == set.name) return *kernels;
  }
  return kScalarKernels;
}

}  // namespace sharpi::cpu
