// SPDX-License-Identifier: MIT
// JSON in both directions: tools and tool calls of a conversation come as JSON, and templates write
// it with `tojson`, in the layouts of Python's json.dumps.
// Thread rule: pure functions.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace sharpi::jinja {

/// Every string of the value is foreign. kInvalidArgument names `what` and the byte.
Status parse_json(std::string_view text, const char* what, Heap* heap, Value* out);

struct JsonLayout {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;  // of one level
  std::string item_separator = ", ", key_separator = ": ";
};

/// kInvalidArgument for what JSON cannot say (undefined, functions).
Status write_json(const Value& value, const JsonLayout& layout, Heap* heap, MarkedText* out,
                  int depth = 0);

}  // namespace sharpi::jinja
