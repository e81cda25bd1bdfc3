// SPDX-License-Identifier: MIT
// The formats of strings that JSON Schema names, as regular expressions.
// Thread rule: pure functions.
#pragma once

#include <string_view>

namespace sharpi::grammar {

/// Null: the format is not one of those that are enforced.
const char* pattern_of_format(std::string_view format);

}  // namespace sharpi::grammar
