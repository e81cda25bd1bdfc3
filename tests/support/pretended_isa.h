// SPDX-License-Identifier: MIT
// SHARPI_TEST_ISA: tests that pretended_isa.cc is linked into take the machine for one whose widest
// instruction set is the one named. The library itself reads no such variable.
#pragma once

#include "cpu/isa.h"

namespace sharpi::test {

/// What a processor may have, from less to more. AVX-512 without VNNI is none of them, because the
/// library takes such a machine for AVX2.
struct IsaSet {
  const char* name;
  cpu::Isa widest;
  bool bf16_dots;
};
inline constexpr IsaSet kIsaSets[] = {
    {"scalar", cpu::Isa::kScalar, false}, {"avx2", cpu::Isa::kAvx2, false},
    {"avx512", cpu::Isa::kAvx512, false}, {"avx512_bf16", cpu::Isa::kAvx512, true},
    {"amx", cpu::Isa::kAmx, true},
};

/// Takes the machine for what SHARPI_TEST_ISA says, as was done before main() began; for itself
/// where it says nothing. Ends the process where the variable asks for what the machine lacks.
void pretend_isa_of_environment();

}  // namespace sharpi::test
