// SPDX-License-Identifier: MIT
// Server-sent events, as OpenAI's clients read them.
#pragma once

#include <string>

#include "fields.h"

namespace server {

/// JSON as one line; what is not UTF-8 is replaced.
inline std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

inline std::string event(const json& data) {
  return "data: " + dump(data) + "\n\n";
}

inline std::string named_event(const std::string& name, const json& data) {
  return "event: " + name + "\ndata: " + dump(data) + "\n\n";
}

inline const char kDone[] = "data: [DONE]\n\n";

}  // namespace server
