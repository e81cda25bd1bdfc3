// SPDX-License-Identifier: MIT
// The fields of a JSON request, each asked for by name: wrong types, values out of range and fields
// that nobody asked for become errors that name them.
// Thread rule: one thread.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

namespace server {

using json = nlohmann::ordered_json;

/// A request that is refused: HTTP status, sentence, and the field it is about.
class RequestError : public std::runtime_error {
 public:
  RequestError(int status, const std::string& sentence, std::string param = "",
               std::string code = "")
      : std::runtime_error(sentence),
        status_(status),
        param_(std::move(param)),
        code_(std::move(code)) {}
  int status() const { return status_; }
  const std::string& param() const { return param_; }
  const std::string& code() const { return code_; }

 private:
  int status_;
  std::string param_, code_;
};

/// {"error": {...}} as OpenAI's clients read it.
json error_json(int status, const std::string& sentence, const std::string& param = "",
                const std::string& code = "");

class Fields {
 public:
  /// @param where "" for the request itself, else the path of the object, such as "tools[0]".
  Fields(const json& object, std::string where);

  /// Null where the field is absent or null.
  const json* find(const char* name);
  const json& need(const char* name);
  std::optional<double> number(const char* name, double low, double high);
  std::optional<int64_t> integer(const char* name, int64_t low, int64_t high);
  std::optional<bool> boolean(const char* name);
  std::optional<std::string> text(const char* name);
  /// Text that holds JSON, as a call's arguments come: the object, or the text where it is none.
  json object_in_text(const char* name);
  /// These do not change the answer: they are allowed, whatever they hold.
  void ignore(std::initializer_list<const char*> names);
  /// The same, and the client is told of those that are there.
  void leave_out(std::initializer_list<const char*> names);
  /// A part of the request that was read and changes nothing, by its path.
  void note_left_out(std::string path) { left_out_.push_back(std::move(path)); }
  /// Those of an object inside are this one's, too.
  void take_left_out(const Fields& inner);
  const std::vector<std::string>& left_out() const { return left_out_; }
  /// The one value that changes nothing is allowed; any other is refused by name.
  void only(const char* name, const json& harmless, const char* why);
  /// Refuses what was not asked for.
  void finish() const;
  std::string path(const char* name) const;
  [[noreturn]] void refuse(const char* name, const std::string& what) const;

 private:
  const json& object_;
  const std::string where_;
  std::set<std::string> known_;
  std::vector<std::string> left_out_;
};

}  // namespace server
