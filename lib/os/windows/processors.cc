// SPDX-License-Identifier: MIT
#include "os/processors.h"

#include <algorithm>
#include <bit>
#include <string>

#include "os/windows/system.h"

namespace sharpi::os {
namespace {

uint32_t affine_cpus() {
  DWORD_PTR process = 0, all = 0;
  // A process whose threads are in several groups of processors gets zeros.
  if (GetProcessAffinityMask(GetCurrentProcess(), &process, &all) && process != 0)
    return static_cast<uint32_t>(std::popcount(static_cast<uint64_t>(process)));
  return std::max<uint32_t>(1, GetActiveProcessorCount(ALL_PROCESSOR_GROUPS));
}

}  // namespace

uint32_t usable_cpus() {
  const uint32_t n = affine_cpus();
  JOBOBJECT_CPU_RATE_CONTROL_INFORMATION job{};
  if (!QueryInformationJobObject(nullptr, JobObjectCpuRateControlInformation, &job, sizeof job,
                                 nullptr))
    return n;
  constexpr DWORD kCapped =
      JOB_OBJECT_CPU_RATE_CONTROL_ENABLE | JOB_OBJECT_CPU_RATE_CONTROL_HARD_CAP;
  if ((job.ControlFlags & kCapped) != kCapped) return n;
  // In ten thousandths of all processors.
  const uint64_t all = std::max<uint32_t>(1, GetActiveProcessorCount(ALL_PROCESSOR_GROUPS));
  const uint64_t quota = (all * job.CpuRate + 9999) / 10000;
  return static_cast<uint32_t>(std::clamp<uint64_t>(quota, 1, n));
}

std::string cpu_name() {
  wchar_t text[256];
  DWORD bytes = sizeof text;
  const LSTATUS status =
      RegGetValueW(HKEY_LOCAL_MACHINE, L"HARDWARE\\DESCRIPTION\\System\\CentralProcessor\\0",
                   L"ProcessorNameString", RRF_RT_REG_SZ, nullptr, text, &bytes);
  if (status != ERROR_SUCCESS || bytes < sizeof(wchar_t)) return "CPU";
  std::string name = utf8({text, bytes / sizeof(wchar_t) - 1});
  while (!name.empty() && name.back() == ' ') name.pop_back();
  return name.empty() ? "CPU" : name;
}

bool request_tile_registers() {
  // Windows 11 and Server 2025 hand tile state out on request; older versions save none.
  using Enable = BOOL(WINAPI*)(DWORD64);
  using Enabled = DWORD64(WINAPI*)();
  constexpr DWORD64 kTiles = DWORD64{1} << 17 | DWORD64{1} << 18;
  const auto enabled = system_function<Enabled>(L"kernel32.dll", "GetEnabledXStateFeatures");
  const auto enable =
      system_function<Enable>(L"kernel32.dll", "EnableProcessOptionalXStateFeatures");
  if (enabled == nullptr || (enabled() & kTiles) != kTiles) return false;
  return enable != nullptr && enable(kTiles);
}

}  // namespace sharpi::os
