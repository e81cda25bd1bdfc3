// SPDX-License-Identifier: MIT
// The instruction sets this machine can run, for tests that go over all of them.
#pragma once

#include <string>
#include <vector>

#include "cpu/isa.h"
#include "cpu/kernel_set.h"

namespace sharpi::cpu {

/// All that hosts can ask for on this processor, runnable here or not; the reference first.
inline std::vector<Isa> known_isas() {
  std::vector<Isa> isas;
  for (const InstructionSet& set : processor().sets) {
    if (isas.empty() || isas.back() != set.isa) isas.push_back(set.isa);
  }
  return isas;
}

inline std::vector<Isa> runnable_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : known_isas()) {
    if (resolve_isa(isa).is_ok()) isas.push_back(isa);
  }
  return isas;
}

/// What a host gets that asks for `isa`. Pre: the machine has it.
inline const KernelSet& kernels_of(Isa isa) {
  return kernel_set(*resolve_isa(isa).value());
}

/// Whether kernels of attention multiply in f32: the others' names begin with what they round to.
inline bool is_f32(const Named<AttentionTable>& kernels) {
  return std::string(kernels.name).starts_with("f32");
}

}  // namespace sharpi::cpu
