// SPDX-License-Identifier: MIT
// What the tools of a request say of their arguments: calls that are written as plain text get
// their types from it.
// Thread rule: one owner.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/value.h"

namespace sharpi {

class ToolSchemas {
 public:
  /// @param json an array of functions, as templates take it: {"type": "function", "function":
  /// {"name": ..., "parameters": schema}}, or the inner object alone. Null: no tools. The values
  /// live in the heap. kInvalidArgument: it is none.
  static Status read(std::string_view json, jinja::Heap* heap, ToolSchemas* out);

  bool empty() const { return tools_.empty(); }
  bool knows(std::string_view tool) const;
  /// The argument `key` of a call of `tool`, which was written as `text`: a string unless the
  /// schema wants something else and the text is that. `heap` owns what it gives. @param spelled
  /// nullable: what the spelling says that it is, where the schema allows that or says nothing.
  jinja::Value typed(std::string_view tool, std::string_view key, std::string_view text,
                     jinja::Heap* heap, const jinja::Value* spelled = nullptr) const;

 private:
  std::vector<std::pair<std::string_view, const jinja::Value*>> tools_;  // null: no parameters
};

}  // namespace sharpi
