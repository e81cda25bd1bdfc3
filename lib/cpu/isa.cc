// SPDX-License-Identifier: MIT
#include "cpu/isa.h"

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sharpi::cpu {
namespace {

struct Machine {
  bool avx2 = false, avx512 = false, bf16_dots = false, amx_present = false, amx_permitted = false;
  bool amd = false;
};

#if defined(__x86_64__)

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

// Linux hands the 8 KiB of tile state out on request only; the grant is for the whole process,
// threads that run already included, and asking again is harmless.
bool request_tile_permission() {
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

Machine probe(bool want_amx) {
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
  m.amx_present = m.avx512 && has_amx();
  m.amx_permitted = want_amx && m.amx_present && request_tile_permission();
  return m;
}

#else

Machine probe(bool) {
  return {};
}

#endif

}  // namespace

const char* isa_name(Isa isa) {
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
  }
  return "unknown";
}

bool has_bf16_dots() {
  static const bool has = probe(false).bf16_dots;
  return has;
}

bool asks_once() {
  static const bool once = probe(false).amd;
  return once;
}

Result<Isa> resolve_isa(Isa wanted) {
  const Machine m = probe(wanted == Isa::kAuto || wanted == Isa::kAmx);
  const auto lacks = [](const char* what) {
    return Status::error(Code::kUnsupported, "this machine lacks %s", what);
  };
  switch (wanted) {
    case Isa::kAuto:
      return m.amx_permitted ? Isa::kAmx
             : m.avx512      ? Isa::kAvx512
             : m.avx2        ? Isa::kAvx2
                             : Isa::kScalar;
    case Isa::kScalar:
      return wanted;
    case Isa::kAvx2:
      if (!m.avx2) return lacks("AVX2, FMA or F16C");
      return wanted;
    case Isa::kAvx512:
      if (!m.avx512) return lacks("AVX-512 (F, BW, DQ, VL and VNNI)");
      return wanted;
    case Isa::kAmx:
      if (!m.amx_present) return lacks("AMX tiles in bf16 and int8");
      if (!m.amx_permitted) return lacks("the system's permission for AMX tiles");
      return wanted;
  }
  return Status::error(Code::kUnsupported, "instruction set %u is unknown",
                       static_cast<unsigned>(wanted));
}

}  // namespace sharpi::cpu
