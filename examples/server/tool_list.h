// SPDX-License-Identifier: MIT
// Tools as each route's clients send them, made into functions as chat completions have them; and
// back again, for what is said of them and for calls.
// Thread rule: one thread an object.
#pragma once

#include <string>
#include <vector>

#include "fields.h"
#include "tools.h"

namespace server {

/// Where a function came from.
struct ToolOrigin {
  std::string called;      // by the model
  std::string place;       // in the request, such as "tools[2]"
  std::string name;        // as the client knows it
  std::string space;       // the namespace that it stands in; empty: none
  bool is_custom = false;  // it takes a text, its parameter "input"
};

class ToolList {
 public:
  /// Chat completions: functions alone; tool_choice may allow some of them.
  static ToolList of_chat(Fields& fields);
  /// Responses: functions, texts ("custom") and namespaces of functions; other types, which only
  /// OpenAI's servers can run, are left out.
  static ToolList of_responses(Fields& fields);
  /// Anthropic's messages: functions; types that its servers or its models bring are left out.
  static ToolList of_messages(Fields& fields);

  /// Throws RequestError, as all of these do.
  Tools read() const;
  /// Calls use(); what it refuses is named as the request has it.
  template <class Use>
  auto with_places(Use use) const {
    try {
      return use();
    } catch (const RequestError& e) {
      throw placed(e);
    }
  }
  /// A text that begins with the place of a tool, with the place that the request has for it.
  std::string placed(const std::string& text) const;
  const std::vector<ToolOrigin>& origins() const { return origins_; }
  /// The name that the model knows a function by.
  static std::string called(const std::string& space, const std::string& name);

 private:
  ToolList(Fields& fields, const char* schema) : fields_(fields), schema_(schema) {}
  void add(json function, ToolOrigin origin);
  void leave_out(const std::string& place, const std::string& type);
  void add_flat(const json& tool, const std::string& place, const std::string& space);
  void add_custom(const json& tool, const std::string& place);
  void add_message_tool(const json& tool, const std::string& place);
  void choose(json choice);
  void take_parallel();
  void allow(const json& list, const std::string& where);
  RequestError placed(const RequestError& error) const;

  Fields& fields_;
  const char* const schema_;  // the name of a function's schema; null: it stands in "function"
  bool is_as_sent_ = false;   // nothing had to be made of it
  json request_ = {{"tools", json::array()}};
  std::vector<ToolOrigin> origins_;
};

}  // namespace server
