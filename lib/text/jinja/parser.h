// SPDX-License-Identifier: MIT
// Parses a template into a Program, with the grammar and the precedences of Jinja 3.
// Thread rule: pure function.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "text/jinja/ast.h"

namespace sharpi::jinja {

/// A template longer than this is refused; the longest published ones have a tenth.
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

/// kFormat with line and column for what is not Jinja; kUnsupported by name for what reads other
/// files (include, import, extends) or belongs to inheritance.
Result<std::unique_ptr<const Program>> parse_template(std::string_view source);

}  // namespace sharpi::jinja
