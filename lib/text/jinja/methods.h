// SPDX-License-Identifier: MIT
// The methods of Python's strings, lists and dicts that templates may call. What would change a
// value is refused, as the sandbox of the reference does.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace sharpi::jinja {

enum class Method : uint8_t {
  kNone,  // no type has an attribute of this name
  // Strings.
  kStrip,
  kLstrip,
  kRstrip,
  kSplit,
  kRsplit,
  kSplitlines,
  kStartswith,
  kEndswith,
  kReplace,
  kLower,
  kUpper,
  kTitle,
  kCapitalize,
  kJoin,
  kFormat,
  kFind,
  kRfind,
  kIsdigit,
  kIsspace,
  kIsalpha,
  kIsalnum,
  kIsupper,
  kIslower,
  kRemoveprefix,
  kRemovesuffix,
  kZfill,
  // Strings and lists.
  kCount,
  kIndex,
  // Dicts.
  kItems,
  kKeys,
  kValues,
  kGet,
  kCopy,
  // Python has them, templates may not call them.
  kRefused,
};

/// The method of that name on any type; kNone if there is none.
Method find_method(std::string_view name);
/// Whether values of this type have it (so that an attribute of that name is not a dict's key).
bool has_method(const Value& self, Method method, std::string_view name);
/// Calls self.method(arguments).
Status call_method(const Value& self, Method method, std::string_view name,
                   const Arguments& arguments, Heap* heap, Value* out);

// What filters share with methods.
enum class Side : uint8_t { kBoth, kLeft, kRight };
/// Without the characters of `characters` (null: blanks) at its ends.
Status strip_text(const Value& text, const Value* characters, Side side, Heap* heap, Value* out);
enum class Case : uint8_t { kLower, kUpper, kTitle, kCapitalize, kTitleFilter };
Status change_case(const Value& text, Case how, Heap* heap, Value* out);
Status replace_text(const Value& text, const Value& from, const Value& to, int64_t count,
                    Heap* heap, Value* out);
Status join_texts(const MarkedText& separator, const std::vector<Value>& items, bool convert,
                  Heap* heap, MarkedText* out);
/// HTML's special characters as entities: what adding to a safe string does.
Status escape_text(const MarkedText& text, Heap* heap, MarkedText* out);
/// text % values, as Python formats.
Status format_percent(const Value& text, const Value& values, Heap* heap, Value* out);

}  // namespace sharpi::jinja
