// SPDX-License-Identifier: MIT
#include "api/api_guard.h"

#include <algorithm>
#include <cstring>

#include "base/utf8.h"

namespace sharpi::api {
namespace {

bool is_continuation(char c) {
  return (static_cast<unsigned char>(c) & 0xC0u) == 0x80u;
}

}  // namespace

void copy_line(std::string_view text, char* out, size_t cap) noexcept {
  size_t n = std::min(text.size(), cap - 1);
  if (n < text.size()) {
    while (n > 0 && is_continuation(text[n])) --n;
  }
  text = text.substr(0, n);
  std::copy(text.begin(), text.end(), out);
  uint32_t length = 0;
  for (size_t i = 0; i < n; i += std::max(length, 1u)) {
    const auto c = static_cast<unsigned char>(text[i]);
    length = utf8_character(text, i);
    if (length == 0) out[i] = '?';
    if (c < 0x20u || c == 0x7Fu) out[i] = ' ';
  }
  out[n] = '\0';
}

sharpi_status report(sharpi_error* err, Code code, int32_t native, std::string_view text) noexcept {
  const auto number = static_cast<sharpi_status>(code);
  if (err == nullptr) return number;
  sharpi_error full;
  std::memset(&full, 0, sizeof full);
  const size_t room = std::min<size_t>(err->struct_size, sizeof full);
  full.struct_size = err->struct_size;
  full.status = number;
  full.native_code = native;
  constexpr size_t kTextAt = offsetof(sharpi_error, text);
  if (room > kTextAt) copy_line(text, full.text, room - kTextAt);
  std::memcpy(err, &full, room);
  return number;
}

Status require(const void* pointer, const char* name) {
  if (pointer != nullptr) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s is null", name);
}

Status require_array(const void* pointer, uint64_t n, const char* name) {
  if (pointer != nullptr || n == 0) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s is null but has %llu elements", name,
                       static_cast<unsigned long long>(n));
}

Status require_flags(uint32_t flags, uint32_t known, const char* name) {
  if ((flags & ~known) == 0) return Status::ok();
  return Status::error(Code::kInvalidArgument, "%s 0x%x has unknown bits; known are 0x%x", name,
                       flags, known);
}

}  // namespace sharpi::api
