// SPDX-License-Identifier: MIT
// How long something took. Thread rule: pure functions.
#pragma once

#include <chrono>

namespace sharpi {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace sharpi
