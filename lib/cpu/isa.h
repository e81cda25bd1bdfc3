// SPDX-License-Identifier: MIT
// Which instruction set the CPU tier's kernels use. Chosen once per context (`auto` = the last of
// the processor's list that the machine has); cpu/kernel_set.h has the kernels of each.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"

namespace sharpi::cpu {

/// What a host asks for (SHARPI_ISA_*).
enum class Isa : uint32_t {
  kAuto = 0,
  kScalar = 1,  // plain C++: the reference
  kAvx2 = 2,    // AVX2 + FMA + F16C
  kAvx512 = 3,  // AVX-512 F/BW/DQ/VL + VNNI, and BF16 where the machine has it
  kAmx = 4,     // kAvx512 plus AMX tiles in bf16 and int8 (needs the system's permission for this
                // process)
  kNeon = 5,    // aarch64's own vectors, and dot products where the machine has them
  kI8mm = 6,    // NEON with products of matrices in int8 and bf16
};
/// Null for a number that is none of these.
constexpr const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAuto:
      return "auto";
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAmx:
      return "amx";
    case Isa::kNeon:
      return "neon";
    case Isa::kI8mm:
      return "i8mm";
  }
  return nullptr;
}

/// One instruction set that kernels are written for. Hosts name a set and its narrower siblings by
/// one number.
struct InstructionSet {
  const char* name;  // "avx512_bf16"
  Isa isa;
  const char* needs;                 // what a machine without it lacks, for messages
  bool (*present)();                 // the processor has it and the system saves its registers
  bool (*granted)() = nullptr;       // asks the system for what it gives on request only
  const char* permission = nullptr;  // what that is, for messages
};
/// Plain C++, which every machine has.
inline constexpr InstructionSet kScalarSet{
    .name = "scalar", .isa = Isa::kScalar, .needs = "", .present = [] { return true; }};

/// What kernels are written for on the processors that this library is compiled for: defined in
/// the folder of that processor (lib/cpu/x86), or in lib/cpu/generic.
struct Processor {
  std::span<const InstructionSet> sets;  // from kScalarSet to what is taken first if it is there
  /// Whether products ask for a line of weights once, into the first level cache, rather than for
  /// the second level cache first and again nearer to its use.
  bool asks_once = false;
};
const Processor& processor();

/// The set that serves a wish; kUnsupported names what the machine lacks when an explicit one
/// cannot run.
Result<const InstructionSet*> resolve_isa(Isa wanted);

/// Tests only, nothing in the library calls it: from now on the machine is taken for one that has
/// nothing behind the set of this name in the processor's list; null: for itself. Before any
/// context exists. kUnsupported: the machine has less, and stays what it was taken for.
Status pretend_isa(const char* widest);

}  // namespace sharpi::cpu
