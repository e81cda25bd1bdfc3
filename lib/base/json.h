// SPDX-License-Identifier: MIT
// JSON text, written piece by piece. Thread rule: one owner.
#pragma once

#include <cstdint>
#include <string>

namespace sharpi {

/// Quoted and escaped. A file's strings may be of any bytes, JSON's are UTF-8: a byte that is part
/// of no character becomes U+FFFD.
std::string json_string(const std::string& text);

/// Appends "key": value pairs between braces to a text of the caller's.
class JsonObject {
 public:
  explicit JsonObject(std::string* out) : out_(out) { *out_ += "{"; }
  void number(const char* key, uint64_t value) { raw(key, std::to_string(value)); }
  void real(const char* key, double value);  // as many digits as it takes; null if not finite
  void text(const char* key, const std::string& value) { raw(key, json_string(value)); }
  void raw(const char* key, const std::string& value) {
    if (!first_) *out_ += ", ";
    first_ = false;
    *out_ += json_string(key) + ": " + value;
  }
  void close() { *out_ += "}"; }

 private:
  std::string* out_;
  bool first_ = true;
};

}  // namespace sharpi
