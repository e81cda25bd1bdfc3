// SPDX-License-Identifier: MIT
// Counts that environment variables ask for. Thread rule: any thread.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>

#include "must.h"

namespace sharpi::bench {

/// What the variable says, `fallback` where it is not set. Dies of what is no count up to 2^24.
inline uint32_t env_count(const char* name, uint32_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return fallback;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  if (*end != '\0' || value > 1u << 24) die(std::string(name) + ": a count is expected");
  return static_cast<uint32_t>(value);
}

}  // namespace sharpi::bench
