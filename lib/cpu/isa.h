// SPDX-License-Identifier: MIT
// Which instruction set the CPU tier's kernels use. Chosen once per context (`auto` = the best that
// the machine has); every kernel exists for kScalar, the others override it where they pay.
// Thread rule: pure functions.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace sharpi::cpu {

enum class Isa : uint32_t {
  kAuto = 0,
  kScalar = 1,  // plain C++: the reference
  kAvx2 = 2,    // AVX2 + FMA + F16C
  kAvx512 = 3,  // AVX-512 F/BW/DQ/VL + VNNI, and BF16 where the machine has it
  kAmx = 4,     // kAvx512 plus AMX tiles in bf16 and int8 (needs the kernel's permission for this
                // process)
};

const char* isa_name(Isa isa);
/// Whether dot products of bf16 pairs come with kAvx512 here (AVX-512 BF16). A machine that has
/// AVX-512 without VNNI is one of kAvx2.
bool has_bf16_dots();
/// Whether products ask for a line of weights once, into the first level cache, rather than for the
/// second level cache first and again nearer to its use. AMD's cores read faster so by a fifth to a
/// third; Intel's were measured with the two requests.
bool asks_once();
/// Resolves kAuto; kUnsupported names what the machine lacks when an explicit one cannot run.
Result<Isa> resolve_isa(Isa wanted);

/// Tests only, nothing in the library calls it: from now on the machine is taken for one whose
/// widest instruction set is `widest`, with or without dot products of bf16 pairs; kAuto: for
/// itself. Before any context exists. kUnsupported: the machine has less, and stays what it was
/// taken for.
Status pretend_isa(Isa widest, bool bf16_dots);

}  // namespace sharpi::cpu
