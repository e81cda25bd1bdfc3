// SPDX-License-Identifier: MIT
// The median of what was measured. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace sharpi::bench {

/// Of an even number of values the larger of the two in the middle; 0 where there are none.
inline double median(std::vector<double> v) {
  if (v.empty()) return 0;
  const auto middle = v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2);
  std::nth_element(v.begin(), middle, v.end());
  return *middle;
}

}  // namespace sharpi::bench
