// SPDX-License-Identifier: MIT
#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/utf8.h"

namespace sharpi {

std::string json_string(const std::string& text) {
  std::string out = "\"";
  uint32_t n = 0;
  for (size_t i = 0; i < text.size(); i += std::max(n, 1u)) {
    n = utf8_character(text, i);
    const char c = text[i];
    const auto u = static_cast<unsigned char>(c);
    if (n == 0) {
      utf8_append(0xFFFD, &out);
    } else if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (u < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", u);
      out += escaped;
    } else {
      out.append(text, i, n);
    }
  }
  return out + "\"";
}

void JsonObject::real(const char* key, double value) {
  if (!std::isfinite(value)) return raw(key, "null");
  char digits[40];
  std::snprintf(digits, sizeof digits, "%.17g", value);
  for (char* c = digits; *c != '\0'; ++c) {
    if (*c == ',') *c = '.';  // the host's locale may write one
  }
  raw(key, digits);
}

}  // namespace sharpi
