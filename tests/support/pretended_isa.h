// SPDX-License-Identifier: MIT
// SHARPI_TEST_ISA: tests that pretended_isa.cc is linked into take the machine for one whose widest
// instruction set is the one named. The library itself reads no such variable.
#pragma once

namespace sharpi::test {

/// Takes the machine for what SHARPI_TEST_ISA says, as was done before main() began; for itself
/// where it says nothing. Ends the process where the variable asks for what the machine lacks.
void pretend_isa_of_environment();

}  // namespace sharpi::test
