// SPDX-License-Identifier: MIT
// Looks for stop strings in text that arrives in pieces. Thread rule: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace sharpi {

/// What of a text may be handed on.
struct StopCut {
  size_t n_safe = 0;     // bytes in front of a stop string, or of what may still become one
  bool stopped = false;  // a stop string was found behind them
  uint32_t which = 0;    // its index
};

/// The stop string that ends first in `text` counts, and of those that end together the longest, so
/// that the result does not depend on how the text was cut into pieces. Pre: no stop is empty.
StopCut find_stop(std::string_view text, std::span<const std::string_view> stops);

}  // namespace sharpi
