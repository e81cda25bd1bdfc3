// SPDX-License-Identifier: MIT
// The host's own work that a step runs on its thread while the device computes
// (sharpi_meanwhile_fn). Thread rule: one owner (the call).
#pragma once

#include <cstdint>
#include <utility>

#include "plan/devices.h"

namespace sharpi {

/// The function that a host gave to a step, and what it is called with.
struct Meanwhile {
  sharpi_meanwhile_fn fn = nullptr;
  void* user_data = nullptr;
  int32_t token = 0;
  /// Once; further calls do nothing.
  void run() noexcept {
    if (fn != nullptr) std::exchange(fn, nullptr)(user_data, token);
  }
};

}  // namespace sharpi
