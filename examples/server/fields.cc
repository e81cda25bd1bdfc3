// SPDX-License-Identifier: MIT
#include "fields.h"

#include <cmath>

#include "json_document.h"

namespace server {
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
  std::string fault;
  json object = parse_nested(given, &fault);
  if (!fault.empty()) refuse(name, fault);
  return object.is_object() ? object : json(given);
}

void Fields::ignore(std::initializer_list<const char*> names) {
  known_.insert(names.begin(), names.end());
}

void Fields::leave_out(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (find(name) != nullptr) note_left_out(path(name));
  }
}

void Fields::take_left_out(const Fields& inner) {
  left_out_.insert(left_out_.end(), inner.left_out_.begin(), inner.left_out_.end());
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
