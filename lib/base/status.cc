// SPDX-License-Identifier: MIT
#include "base/status.h"

#include <cstdarg>
#include <cstdio>

namespace sharpi {
namespace {

std::string format_text(const char* format, va_list args) {
  va_list measure;
  va_copy(measure, args);
  const int n = std::vsnprintf(nullptr, 0, format, measure);
  va_end(measure);
  if (n <= 0) return {};
  std::string text(static_cast<size_t>(n), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, args);
  return text;
}

}  // namespace

Status Status::error(Code code, const char* format, ...) {
  Status s;
  s.code_ = code;
  va_list args;
  va_start(args, format);
  s.text_ = format_text(format, args);
  va_end(args);
  return s;
}

Status Status::native_error(Code code, int32_t native, const char* format, ...) {
  Status s;
  s.code_ = code;
  s.native_ = native;
  va_list args;
  va_start(args, format);
  s.text_ = format_text(format, args);
  va_end(args);
  return s;
}

}  // namespace sharpi
