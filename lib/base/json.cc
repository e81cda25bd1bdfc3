// SPDX-License-Identifier: MIT
#include "base/json.h"

#include <cstdio>

namespace sharpi {

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", u);
      out += escaped;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void JsonObject::real(const char* key, double value) {
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  for (char* c = digits; *c != '\0'; ++c) {
    if (*c == ',') *c = '.';  // the host's locale may write one
  }
  raw(key, digits);
}

}  // namespace sharpi
