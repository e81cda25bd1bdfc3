// SPDX-License-Identifier: MIT
// What an x86-64 processor has, and what its system saves.
#include <cpuid.h>

#include <cstdint>

#include "cpu/isa.h"
#include "os/processors.h"

namespace sharpi::cpu {
namespace {

struct Machine {
  bool avx2 = false, avx512 = false, bf16_dots = false, amx = false;
  bool amd = false;
};

// The system's opinion: a register state that it does not save must not be touched.
uint64_t saved_states() {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return 0;
  __asm__ volatile("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return uint64_t{edx} << 32 | eax;
}

bool has_avx512_bf16() {
  constexpr uint32_t kEaxAvx512Bf16 = 1u << 5;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & kEaxAvx512Bf16) != 0;
}

bool has_amx() {
  constexpr uint32_t kEdxAmxBf16 = 1u << 22, kEdxAmxTile = 1u << 24, kEdxAmxInt8 = 1u << 25;
  constexpr uint32_t kEdxAll = kEdxAmxBf16 | kEdxAmxTile | kEdxAmxInt8;
  constexpr uint64_t kTileStates = uint64_t{3} << 17;
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kEdxAll) != kEdxAll) return false;
  return has_avx512_bf16() && (saved_states() & kTileStates) == kTileStates;
}

Machine probe() {
  __builtin_cpu_init();
  Machine m;
  m.amd = __builtin_cpu_is("amd") != 0;
  m.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (m.avx2) {
    uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
    m.avx2 = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  }
  m.avx512 = m.avx2 && __builtin_cpu_supports("avx512f") != 0 &&
             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
             __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
  m.bf16_dots = m.avx512 && has_avx512_bf16();
  m.amx = m.avx512 && has_amx();
  return m;
}

const Machine& machine() {
  static const Machine machine = probe();
  return machine;
}

constexpr InstructionSet kSets[] = {
    kScalarSet,
    {.name = "avx2",
     .isa = Isa::kAvx2,
     .needs = "AVX2, FMA or F16C",
     .present = [] { return machine().avx2; }},
    // A machine that has AVX-512 without VNNI is one of AVX2.
    {.name = "avx512",
     .isa = Isa::kAvx512,
     .needs = "AVX-512 (F, BW, DQ, VL and VNNI)",
     .present = [] { return machine().avx512; }},
    {.name = "avx512_bf16",
     .isa = Isa::kAvx512,
     .needs = "AVX-512 BF16",
     .present = [] { return machine().bf16_dots; }},
    {.name = "amx",
     .isa = Isa::kAmx,
     .needs = "AMX tiles in bf16 and int8",
     .present = [] { return machine().amx; },
     .granted = os::request_tile_registers,
     .permission = "the system's permission for AMX tiles"},
};

}  // namespace

// AMD's cores read weights that are asked for once faster by a fifth to a third; Intel's were
// measured with two requests.
const Processor& processor() {
  static const Processor processor{kSets, machine().amd};
  return processor;
}

}  // namespace sharpi::cpu
