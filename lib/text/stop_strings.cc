// SPDX-License-Identifier: MIT
#include "text/stop_strings.h"

#include <algorithm>

namespace sharpi {

StopCut find_stop(std::string_view text, std::span<const std::string_view> stops) {
  StopCut cut;
  size_t length = 0;
  for (size_t end = 1; end <= text.size() && !cut.stopped; ++end) {
    for (uint32_t i = 0; i < stops.size(); ++i) {
      if (stops[i].size() > length && text.substr(0, end).ends_with(stops[i])) {
        cut = {end - stops[i].size(), true, i};
        length = stops[i].size();
      }
    }
  }
  if (cut.stopped) return cut;
  // The longest end of the text that a stop string begins with waits for what comes next.
  size_t held = 0;
  for (const std::string_view stop : stops) {
    size_t n = std::min(stop.size() - 1, text.size());
    while (n > held && !text.ends_with(stop.substr(0, n))) --n;
    held = std::max(held, n);
  }
  cut.n_safe = text.size() - held;
  return cut;
}

}  // namespace sharpi
