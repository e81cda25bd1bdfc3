// SPDX-License-Identifier: MIT
// Regular expressions as ECMAScript writes them, which JSON Schema takes: classes, groups, counts,
// anchors, looking ahead, \p{..} of general categories. What is not regular (back references), and
// looking back and word boundaries, are refused by name.
// Thread rule: pure functions over the given expressions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/grammar/code_points.h"

namespace sharpi::grammar {

/// Where a pattern is looked for.
struct PatternText {
  Spelling spelling = Spelling::kPlain;
  Expr character = 0;  // any of them
  Expr open = Expressions::kEmpty, close = Expressions::kEmpty;
  bool whole = false;  // the whole text has to match, not a part of it
};

/// Texts with their opening and closing. kInvalidArgument: no such expression; kUnsupported: says
/// what is not taken.
Result<Expr> compile_pattern(Expressions& e, std::string_view pattern, const PatternText& text);

}  // namespace sharpi::grammar
