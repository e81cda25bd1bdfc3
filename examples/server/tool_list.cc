// SPDX-License-Identifier: MIT
#include "tool_list.h"

#include <algorithm>
#include <set>
#include <utility>

namespace server {
namespace {

std::string element(const std::string& list, size_t i) {
  return list + "[" + std::to_string(i) + "]";
}

// A word of a client's, for a header of the answer.
std::string word(const std::string& text) {
  std::string out = text.substr(0, 64);
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  std::replace_if(
      out.begin(), out.end(), [&](char c) { return !is_plain(c); }, '?');
  return out;
}

const json& list_of(Fields& fields, const char* name) {
  static const json kNone = json::array();
  const json* list = fields.find(name);
  if (list == nullptr) return kNone;
  if (!list->is_array()) fields.refuse(name, "is not a list");
  return *list;
}

std::string type_of(const json& tool, const std::string& place, const char* otherwise) {
  Fields f(tool, place);
  return f.text("type").value_or(otherwise);
}

bool is_allowance(const json* choice) {
  return choice != nullptr && choice->is_object() && choice->contains("type") &&
         (*choice)["type"] == "allowed_tools";
}

}  // namespace

std::string ToolList::called(const std::string& space, const std::string& name) {
  return space.empty() ? name : space + "__" + name;
}

void ToolList::add(json function, ToolOrigin origin) {
  request_["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  origins_.push_back(std::move(origin));
}

void ToolList::leave_out(const std::string& place, const std::string& type) {
  fields_.note_left_out(place + " (" + word(type) + ")");
}

Tools ToolList::read() const {
  if (is_as_sent_) return read_tools(fields_, false);
  return with_places([&] {
    Fields fields(request_, "");
    return read_tools(fields, false);
  });
}

// Texts of the library begin with the function's place in the list that was made of the request's.
std::string ToolList::placed(const std::string& text) const {
  for (size_t i = 0; i < origins_.size(); ++i) {
    const std::string made = element("tools", i);
    if (!text.starts_with(made)) continue;
    std::string rest = text.substr(made.size());
    if (schema_ != nullptr && rest.starts_with(".function")) rest.erase(0, 9);
    if (schema_ != nullptr && rest.starts_with(".parameters")) {
      rest = "." + std::string(schema_) + rest.substr(11);
    }
    return origins_[i].place + rest;
  }
  return text;
}

RequestError ToolList::placed(const RequestError& error) const {
  return {error.status(), placed(error.what()), placed(error.param()), error.code()};
}

// Only those that are named stay.
void ToolList::allow(const json& list, const std::string& where) {
  if (!list.is_array()) throw RequestError(400, where + " is not a list", where);
  std::set<std::string> allowed;
  for (size_t i = 0; i < list.size(); ++i) {
    Fields f(list[i], element(where, i));
    const std::string type = f.text("type").value_or("function");
    const bool nested = type == "function" && f.find("function") != nullptr;
    Fields inner(nested ? f.need("function") : list[i], element(where, i));
    if (type != "function" && type != "custom") continue;  // one that was left out
    inner.need("name");
    allowed.insert(inner.text("name").value());
  }
  json kept = json::array();
  std::vector<ToolOrigin> origins;
  for (size_t i = 0; i < origins_.size(); ++i) {
    if (!allowed.contains(origins_[i].name)) continue;
    kept.push_back(std::move(request_["tools"][i]));
    origins.push_back(std::move(origins_[i]));
  }
  request_["tools"] = std::move(kept);
  origins_ = std::move(origins);
}

// In the form of chat completions, but for the two forms of what is allowed.
void ToolList::choose(json choice) {
  if (is_allowance(&choice)) {
    Fields outer(choice, "tool_choice");
    const bool nested = outer.find("allowed_tools") != nullptr;
    const std::string where = nested ? "tool_choice.allowed_tools" : "tool_choice";
    Fields f(nested ? outer.need("allowed_tools") : choice, where);
    const std::string mode = f.text("mode").value_or("auto");
    if (mode != "auto" && mode != "required") f.refuse("mode", "is not auto or required");
    allow(f.need("tools"), where + ".tools");
    request_["tool_choice"] = mode;
    return;
  }
  request_["tool_choice"] = std::move(choice);
}

// As chat completions and Responses both have it.
void ToolList::take_parallel() {
  if (const json* several = fields_.find("parallel_tool_calls")) {
    request_["parallel_tool_calls"] = *several;
  }
}

ToolList ToolList::of_chat(Fields& fields) {
  ToolList out(fields, nullptr);
  const json* choice = fields.find("tool_choice");
  out.is_as_sent_ = !is_allowance(choice);
  if (out.is_as_sent_) return out;
  const json& tools = list_of(fields, "tools");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = element("tools", i);
    out.request_["tools"].push_back(tools[i]);
    std::string name;
    if (tools[i].is_object() && tools[i].contains("function")) {
      const json& function = tools[i]["function"];
      if (function.is_object() && function.contains("name") && function["name"].is_string()) {
        name = function["name"].get<std::string>();
      }
    }
    out.origins_.push_back({name, place, name, "", false});
  }
  out.choose(*choice);
  out.take_parallel();
  return out;
}

void ToolList::add_flat(const json& tool, const std::string& place, const std::string& space) {
  Fields f(tool, place);
  f.need("name");
  const std::string name = f.text("name").value();
  json function = tool;
  function.erase("type");
  function.erase("defer_loading");
  function["name"] = called(space, name);
  add(std::move(function), {called(space, name), place, name, space, false});
}

// The model calls a function with one text; a grammar for that is told, not enforced.
void ToolList::add_custom(const json& tool, const std::string& place) {
  Fields f(tool, place);
  f.need("name");
  const std::string name = f.text("name").value();
  std::string description = f.text("description").value_or("");
  f.ignore({"type", "defer_loading"});
  if (const json* given = f.find("format")) {
    Fields format(*given, place + ".format");
    const std::string type = format.text("type").value_or("text");
    if (type == "grammar") {
      format.need("definition");
      description += "\n\nThe input keeps to this grammar (" +
                     format.text("syntax").value_or("lark") + "):\n" +
                     format.text("definition").value();
      fields_.note_left_out(place + ".format");
    } else if (type != "text") {
      format.refuse("type", "is not text or grammar");
    }
    format.finish();
  }
  f.finish();
  json function = {{"name", name},
                   {"description", description},
                   {"parameters",
                    {{"type", "object"},
                     {"properties", {{"input", {{"type", "string"}}}}},
                     {"required", json::array({"input"})},
                     {"additionalProperties", false}}}};
  add(std::move(function), {name, place, name, "", true});
}

ToolList ToolList::of_responses(Fields& fields) {
  ToolList out(fields, "parameters");
  const json& tools = list_of(fields, "tools");
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string place = element("tools", i);
    const std::string type = type_of(tools[i], place, "function");
    if (type == "function") {
      out.add_flat(tools[i], place, "");
    } else if (type == "custom") {
      out.add_custom(tools[i], place);
    } else if (type == "namespace") {
      Fields space(tools[i], place);
      space.need("name");
      const json& inside = list_of(space, "tools");
      for (size_t k = 0; k < inside.size(); ++k) {
        const std::string at = element(place + ".tools", k);
        const std::string kind = type_of(inside[k], at, "function");
        if (kind != "function") {
          out.leave_out(at, kind);
        } else {
          out.add_flat(inside[k], at, space.text("name").value());
        }
      }
    } else {
      out.leave_out(place, type);
    }
  }
  if (const json* choice = fields.find("tool_choice")) {
    json made = *choice;
    if (made.is_object() && made.contains("name") && made.contains("type") &&
        (made["type"] == "function" || made["type"] == "custom")) {
      const bool spaced = made.contains("namespace") && made["namespace"].is_string();
      json name = made["name"];
      if (spaced && name.is_string()) {
        name = called(made["namespace"].get<std::string>(), name.get<std::string>());
      }
      made = {{"type", "function"}, {"function", {{"name", std::move(name)}}}};
    }
    out.choose(std::move(made));
  }
  out.take_parallel();
  return out;
}

void ToolList::add_message_tool(const json& tool, const std::string& place) {
  Fields f(tool, place);
  const std::string type = f.text("type").value_or("custom");
  if (type != "custom") return leave_out(place, type);
  f.need("name");
  const std::string name = f.text("name").value();
  json function = {{"name", name}};
  for (const char* key : {"description", "strict"}) {
    if (const json* value = f.find(key)) function[key] = *value;
  }
  if (const json* schema = f.find("input_schema")) function["parameters"] = *schema;
  f.ignore({"cache_control", "eager_input_streaming"});
  f.leave_out({"defer_loading", "input_examples", "allowed_callers"});
  f.finish();
  fields_.take_left_out(f);
  add(std::move(function), {name, place, name, "", false});
}

ToolList ToolList::of_messages(Fields& fields) {
  ToolList out(fields, "input_schema");
  const json& tools = list_of(fields, "tools");
  for (size_t i = 0; i < tools.size(); ++i) {
    out.add_message_tool(tools[i], element("tools", i));
  }
  const json* choice = fields.find("tool_choice");
  if (choice == nullptr) return out;
  Fields f(*choice, "tool_choice");
  f.need("type");
  const std::string type = f.text("type").value();
  if (type == "tool") {
    out.request_["tool_choice"] = {{"type", "function"}, {"function", {{"name", f.need("name")}}}};
  } else if (type == "auto" || type == "none") {
    out.request_["tool_choice"] = type;
  } else if (type == "any") {
    out.request_["tool_choice"] = "required";
  } else {
    f.refuse("type", "is not auto, any, tool or none");
  }
  if (const auto single = f.boolean("disable_parallel_tool_use")) {
    out.request_["parallel_tool_calls"] = !*single;
  }
  f.ignore({"name"});
  f.finish();
  return out;
}

}  // namespace server
