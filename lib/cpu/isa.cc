// SPDX-License-Identifier: MIT
#include "cpu/isa.h"

#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sharpi::cpu {
namespace {

struct Machine {
  bool avx2 = false, avx512 = false, bf16_dots = false, amx = false;
  bool amd = false;
};

// What tests take the machine for (pretend_isa).
std::atomic<Isa> g_widest{Isa::kAuto};
std::atomic<bool> g_without_bf16_dots{false};

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

#else

bool request_tile_permission() {
  return false;
}
Machine probe() {
  return {};
}

#endif

const Machine& real_machine() {
  static const Machine machine = probe();
  return machine;
}

Machine taken_for(Machine m, Isa widest, bool without_bf16_dots) {
  switch (widest) {
    case Isa::kScalar:
      m.avx2 = false;
      [[fallthrough]];
    case Isa::kAvx2:
      m.avx512 = m.bf16_dots = false;
      [[fallthrough]];
    case Isa::kAvx512:
      m.amx = false;
      break;
    case Isa::kAmx:
    case Isa::kAuto:
      break;
  }
  if (without_bf16_dots) m.bf16_dots = false;
  return m;
}

Machine machine() {
  return taken_for(real_machine(), g_widest.load(), g_without_bf16_dots.load());
}

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
  return machine().bf16_dots;
}

bool asks_once() {
  return real_machine().amd;
}

Result<Isa> resolve_isa(Isa wanted) {
  const Machine m = machine();
  const bool permitted =
      (wanted == Isa::kAuto || wanted == Isa::kAmx) && m.amx && request_tile_permission();
  const auto lacks = [](const char* what) {
    return Status::error(Code::kUnsupported, "this machine lacks %s", what);
  };
  switch (wanted) {
    case Isa::kAuto:
      return permitted ? Isa::kAmx : m.avx512 ? Isa::kAvx512 : m.avx2 ? Isa::kAvx2 : Isa::kScalar;
    case Isa::kScalar:
      return wanted;
    case Isa::kAvx2:
      if (!m.avx2) return lacks("AVX2, FMA or F16C");
      return wanted;
    case Isa::kAvx512:
      if (!m.avx512) return lacks("AVX-512 (F, BW, DQ, VL and VNNI)");
      return wanted;
    case Isa::kAmx:
      if (!m.amx) return lacks("AMX tiles in bf16 and int8");
      if (!permitted) return lacks("the system's permission for AMX tiles");
      return wanted;
  }
  return Status::error(Code::kUnsupported, "instruction set %u is unknown",
                       static_cast<unsigned>(wanted));
}

Status pretend_isa(Isa widest, bool bf16_dots) {
  const Isa before = g_widest.exchange(Isa::kAuto);
  const bool before_without = g_without_bf16_dots.exchange(false);
  Status status = resolve_isa(widest).status();
  const bool narrow = widest == Isa::kScalar || widest == Isa::kAvx2;
  if (status.is_ok() && widest != Isa::kAuto && bf16_dots && (narrow || !has_bf16_dots())) {
    status = Status::error(Code::kUnsupported, "%s has no dot products of bf16 pairs here",
                           isa_name(widest));
  }
  g_widest.store(status.is_ok() ? widest : before);
  g_without_bf16_dots.store(status.is_ok() ? widest != Isa::kAuto && !bf16_dots : before_without);
  return status;
}

}  // namespace sharpi::cpu
