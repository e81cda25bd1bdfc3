// SPDX-License-Identifier: MIT
// Grammars in GBNF, the notation of llama.cpp: `root ::= "a" ("b" | [c-z])* rule`.
// Thread rule: pure functions over the given expressions.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/grammar/expressions.h"

namespace sharpi::grammar {

/// The strings of its rule `root`; settles `e`. kInvalidArgument: line and what is wrong there, or
/// a rule that begins with itself.
Result<Expr> compile_gbnf(Expressions& e, std::string_view text);

}  // namespace sharpi::grammar
