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

/// What an argument may be, by its schema. Where that allows texts, what is written is a text, but
/// for null.
struct ArgumentTypes {
  bool string = false, number = false, boolean = false, null = false, array = false, object = false;
  bool free_string = false;                 // strings are not only those of `listed`
  std::vector<const jinja::Value*> listed;  // of enum and const

  /// False: the schema says nothing of it, so that it is a text.
  bool any() const { return string || number || boolean || null || array || object; }
  bool allow(const jinja::Value& value) const;
  /// Strings are listed, so that other values which are listed can be told from them.
  bool lists_strings() const { return string && !free_string; }
  /// A value that is no text may stand there.
  bool may_be_json() const { return any() && (!string || lists_strings()); }
};

class ToolSchemas {
 public:
  /// @param json an array of functions, as templates take it: {"type": "function", "function":
  /// {"name": ..., "parameters": schema}}, or the inner object alone. Null: no tools. The values
  /// live in the heap. kInvalidArgument: it is none.
  static Status read(std::string_view json, jinja::Heap* heap, ToolSchemas* out);

  bool empty() const { return tools_.empty(); }
  bool knows(std::string_view tool) const;
  /// What the arguments of a call, described by a schema, may be: the one named `key`.
  static ArgumentTypes types_of(const jinja::Value& parameters, std::string_view key);
  ArgumentTypes types(std::string_view tool, std::string_view key) const;
  /// The argument `key` of a call of `tool`, which was written as `text`: a string unless the
  /// schema wants something else and the text is that, or lists the value that the text is. `heap`
  /// owns what it gives. @param spelled nullable: what the spelling says that it is, where the
  /// schema allows that or says nothing.
  jinja::Value typed(std::string_view tool, std::string_view key, std::string_view text,
                     jinja::Heap* heap, const jinja::Value* spelled = nullptr) const;

 private:
  std::vector<std::pair<std::string_view, const jinja::Value*>> tools_;  // null: no parameters
};

}  // namespace sharpi
