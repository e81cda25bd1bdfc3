// SPDX-License-Identifier: MIT
// A regular expression as it is written. Thread rule: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/grammar/code_points.h"

namespace sharpi::grammar {

struct PatternNode {
  enum class Kind : uint8_t {
    kClass,
    kSequence,  // of parts; none: the empty string
    kChoice,    // of parts
    kRepeat,    // parts[0], low to high times
    kBegin,
    kEnd,
    kAhead,     // parts[0] has to follow
    kNotAhead,  // must not
  };
  Kind kind = Kind::kSequence;
  CodePoints which;
  uint32_t low = 0, high = 0;
  std::vector<PatternNode> parts;
};

Result<PatternNode> parse_pattern(std::string_view pattern);

}  // namespace sharpi::grammar
