// SPDX-License-Identifier: MIT
// The devices of a plan: the host and any number of others, each with a kind, a name, a stable id,
// limits and rates of its own. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <string>

#include "sharpi.h"

namespace sharpi {

/// Kinds of devices; the numbers are those of SHARPI_TIER_*.
enum class TierId : uint32_t {
  kCpu = SHARPI_TIER_CPU,
  kCuda = SHARPI_TIER_CUDA,
  kVulkan = SHARPI_TIER_VULKAN,
};
/// As sharpi_tier_name().
constexpr const char* tier_name(uint32_t tier) {
  if (tier == 0) return "none";
  switch (TierId{tier}) {
    case TierId::kCpu:
      return "cpu";
    case TierId::kCuda:
      return "cuda";
    case TierId::kVulkan:
      return "vulkan";
  }
  return "unknown";
}
/// Whether a tier's memory is the host's; every other tier has memory of its own.
constexpr bool is_host(TierId tier) {
  return tier == TierId::kCpu;
}

/// A device of the context's list, as sharpi_device_info() counts. A tier gets placements that are
/// renumbered for it (Placement::seen_from()), in which it is kHere, whatever its index is.
enum class DeviceIndex : uint32_t { kHost = 0, kHere = 1 };
constexpr bool is_host(DeviceIndex device) {
  return device == DeviceIndex::kHost;
}
constexpr uint32_t index_of(DeviceIndex device) {
  return static_cast<uint32_t>(device);
}

/// Devices of a context, the host included, that plans may use.
inline constexpr uint32_t kMaxDevices = 32;

/// What a plan knows of a device that it may use.
struct PlanDevice {
  TierId tier = TierId::kCpu;
  DeviceIndex index = DeviceIndex::kHost;
  std::string name, id;
  /// What everything made of the plan may hold there; SHARPI_ALL_FREE = whatever is free.
  uint64_t budget = SHARPI_ALL_FREE;
  uint64_t reserve = SHARPI_RESERVE_AUTO;  // of what is free
  std::string refusal;                     // why this plan cannot use it; empty = it can
  /// Bytes/s of its memory, and of the link between it and the host's; 0 = not known.
  double rate = 0, link_rate = 0;
};

}  // namespace sharpi
