// SPDX-License-Identifier: MIT
// JSON in both directions: tools and tool calls of a conversation come as JSON, and templates write
// it with `tojson`, in the layouts of Python's json.dumps.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/value.h"

namespace sharpi::jinja {

/// What becomes of numbers that a double does not hold.
enum class JsonNumbers : uint8_t {
  kPython,    // infinity
  kAsWritten  // they stay as they are
};

/// Every string and number of the value is foreign. Integers beyond 64 bits stay as they are
/// written, halves of surrogate pairs that stand alone become U+FFFD. kInvalidArgument names `what`
/// and the byte.
Status parse_json(std::string_view text, const char* what, Heap* heap, Value* out,
                  JsonNumbers numbers = JsonNumbers::kPython);

enum class JsonPrefix : uint8_t {
  kWhole,  // the value is there
  kOpen,   // more text may make one of it
  kNone,
};
/// The value that a text begins with, numbers as written; *used: its bytes. Never says kNone where
/// more text may make it kWhole, and reads no further than where that is known.
JsonPrefix read_json_prefix(std::string_view text, Heap* heap, Value* out, size_t* used);

struct JsonLayout {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  MarkedText indent;  // of one level
  MarkedText item_separator{", ", false}, key_separator{": ", false};
};

/// kInvalidArgument for what JSON cannot say (undefined, functions); kDoesNotFit for values nested
/// too deeply.
Status write_json(const Value& value, const JsonLayout& layout, Heap* heap, MarkedText* out);

}  // namespace sharpi::jinja
