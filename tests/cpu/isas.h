// SPDX-License-Identifier: MIT
// The instruction sets this machine can run, for tests that go over all of them.
#pragma once

#include <vector>

#include "cpu/isa.h"

namespace sharpi::cpu {

inline std::vector<Isa> runnable_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
    if (resolve_isa(isa).is_ok()) isas.push_back(isa);
  }
  return isas;
}

}  // namespace sharpi::cpu
