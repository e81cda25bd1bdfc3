// SPDX-License-Identifier: MIT
#include "fields.h"

#include <cmath>

namespace server {
namespace {

// Deeper documents are refused before they are parsed.
constexpr size_t kMaxDepth = 100;
// Names of an object are compared with each other.
constexpr size_t kMaxMembers = 1024;

}  // namespace

std::string shape_fault(const std::string& text) {
  std::vector<size_t> members;  // of each list or object that is open
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      if (c == '"') in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      members.push_back(0);
      if (members.size() > kMaxDepth) {
        return "is nested more than " + std::to_string(kMaxDepth) + " levels deep at byte " +
               std::to_string(i + 1);
      }
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ':' && !members.empty() && ++members.back() > kMaxMembers) {
      return "has an object with more than " + std::to_string(kMaxMembers) + " members at byte " +
             std::to_string(i + 1);
    }
  }
  return "";
}

json error_json(int status, const std::string& sentence, const std::string& param,
                const std::string& code) {
  const char* type = status == 401   ? "authentication_error"
                     : status == 429 ? "rate_limit_error"
                     : status >= 500 ? "server_error"
                                     : "invalid_request_error";
  return {{"error",
           {{"message", sentence},
            {"type", type},
            {"param", param.empty() ? json() : json(param)},
            {"code", code.empty() ? json() : json(code)}}}};
}

json parse_body(const std::string& body) {
  const std::string fault = shape_fault(body);
  if (!fault.empty()) throw RequestError(400, "the body " + fault);
  json out;
  try {
    out = json::parse(body);
  } catch (const json::parse_error& e) {
    const size_t byte = std::min(e.byte, body.size());
    size_t line = 1, column = 1;
    for (size_t i = 0; i + 1 < byte; ++i) {
      column = body[i] == '\n' ? 1 : column + 1;
      line += body[i] == '\n' ? 1 : 0;
    }
    throw RequestError(400,
                       "the body is not JSON: at byte " + std::to_string(e.byte) + ", line " +
                           std::to_string(line) + ", column " + std::to_string(column),
                       "", "invalid_json");
  }
  if (!out.is_object()) throw RequestError(400, "the body is not a JSON object");
  return out;
}

Fields::Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) throw RequestError(400, where_ + " is not an object", where_);
}

std::string Fields::path(const char* name) const {
  return where_.empty() ? name : where_ + "." + name;
}

void Fields::refuse(const char* name, const std::string& what) const {
  throw RequestError(400, path(name) + " " + what, path(name));
}

const json* Fields::find(const char* name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

const json& Fields::need(const char* name) {
  const json* found = find(name);
  if (found == nullptr) refuse(name, "is missing");
  return *found;
}

std::optional<double> Fields::number(const char* name, double low, double high) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= low && number <= high)) {
    refuse(name, "is not a number from " + json(low).dump() + " to " + json(high).dump());
  }
  return number;
}

std::optional<int64_t> Fields::integer(const char* name, int64_t low, int64_t high) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  const int64_t number = fits ? value->get<int64_t>() : 0;
  if (!fits || number < low || number > high) {
    refuse(name,
           "is not a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return number;
}

std::optional<bool> Fields::boolean(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) refuse(name, "is not true or false");
  return value->get<bool>();
}

std::optional<std::string> Fields::text(const char* name) {
  const json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) refuse(name, "is not a text");
  return value->get<std::string>();
}

json Fields::object_in_text(const char* name) {
  const std::string given = text(name).value_or("{}");
  const std::string fault = shape_fault(given);
  if (!fault.empty()) refuse(name, fault);
  json object = json::parse(given, nullptr, false);
  return object.is_object() ? object : json(given);
}

void Fields::ignore(std::initializer_list<const char*> names) {
  known_.insert(names.begin(), names.end());
}

void Fields::only(const char* name, const json& harmless, const char* why) {
  const json* value = find(name);
  if (value != nullptr && *value != harmless) {
    refuse(name, "is not supported, except as " + harmless.dump() + ": " + why);
  }
}

void Fields::finish() const {
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) {
      throw RequestError(400, path(name.c_str()) + " is not known here", path(name.c_str()),
                         "unknown_parameter");
    }
  }
}

}  // namespace server
