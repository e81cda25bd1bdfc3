// SPDX-License-Identifier: MIT
// Processors that no kernels but those in plain C++ are written for.
#include "cpu/isa.h"

namespace sharpi::cpu {

const Processor& processor() {
  static constexpr InstructionSet kSets[] = {kScalarSet};
  static constexpr Processor kProcessor{kSets, false};
  return kProcessor;
}

}  // namespace sharpi::cpu
