// SPDX-License-Identifier: MIT
// What a step was given for the host to do. Thread rule: one owner (the call).
#pragma once

#include <cstdint>
#include <utility>

#include "plan/plan.h"

namespace sharpi {

/// Work of the host that may run while a device computes: what a step was given for it.
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
