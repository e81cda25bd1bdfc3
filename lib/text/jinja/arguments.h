// SPDX-License-Identifier: MIT
// Arguments of a call, and how they find the parameters of a function of ours.
// Thread rule: plain values.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace sharpi::jinja {

struct Keyword {
  std::string_view name;
  Value value;
  /// Of one that ** took from a dict, the key, which knows where its text comes from; else null.
  const MarkedText* key = nullptr;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<Keyword> keywords;

  size_t size() const { return positional.size() + keywords.size(); }
};

/// Parameters by name; those without an argument stay as `out` has them. `given` may be null.
inline Status bind(const Arguments& arguments, const char* function,
                   std::initializer_list<std::string_view> names, Value* out,
                   bool* given = nullptr) {
  if (arguments.positional.size() > names.size()) {
    return Status::error(Code::kInvalidArgument, "%s takes %zu arguments at most, not %zu",
                         function, names.size(), arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    out[i] = arguments.positional[i];
    if (given != nullptr) given[i] = true;
  }
  for (const auto& [name, value, key] : arguments.keywords) {
    size_t i = 0;
    while (i < names.size() && names.begin()[i] != name) ++i;
    if (i == names.size() || i < arguments.positional.size()) {
      return Status::error(Code::kInvalidArgument, "%s takes no further argument \"%.*s\"",
                           function, static_cast<int>(name.size()), name.data());
    }
    out[i] = value;
    if (given != nullptr) given[i] = true;
  }
  return Status::ok();
}

}  // namespace sharpi::jinja
