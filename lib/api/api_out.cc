// SPDX-License-Identifier: MIT
#include "api/api_out.h"

#include <algorithm>
#include <cstddef>

namespace sharpi::api {
Status too_small(uint64_t cap, uint64_t needed, const char* unit) {
  return Status::error(Code::kBufferTooSmall, "the buffer holds %llu %s, but %llu are needed",
                       static_cast<unsigned long long>(cap), unit,
                       static_cast<unsigned long long>(needed));
}

Status check_out(const void* out, uint64_t cap, const void* out_n) {
  SHARPI_TRY(require(out_n, "the out-length"));
  if (out == nullptr && cap > 0) {
    return Status::error(Code::kInvalidArgument,
                         "the buffer is null, but its capacity is given as %llu",
                         static_cast<unsigned long long>(cap));
  }
  return Status::ok();
}

Status copy_text(std::string_view text, char* out, size_t cap, size_t* out_len) {
  SHARPI_TRY(check_out(out, cap, out_len));
  *out_len = text.size();
  if (cap < text.size()) return too_small(cap, text.size(), "bytes");
  if (!text.empty()) std::memcpy(out, text.data(), text.size());
  return Status::ok();
}

Status check_row_size(uint32_t row_size, size_t known, const char* name) {
  if (row_size >= known && row_size <= kMaxStructBytes && row_size % 8 == 0) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "row_size %u is no sizeof(%s): that is %zu or, from a newer header, a "
                       "larger multiple of 8 up to %u",
                       row_size, name, known, kMaxStructBytes);
}

Status check_row_tail(const void* row, size_t known, uint32_t row_size, const char* list,
                      uint32_t i) {
  const auto* bytes = static_cast<const std::byte*>(row);
  const bool more =
      std::any_of(bytes + known, bytes + row_size, [](std::byte b) { return b != std::byte{0}; });
  if (!more) return Status::ok();
  return Status::error(Code::kUnsupported,
                       "%s[%u] has bytes set behind the %zu bytes that this library knows", list, i,
                       known);
}

Status copy_rows(std::span<const MemoryRow> rows, sharpi_memory_row* out, uint32_t row_size,
                 uint32_t cap, uint32_t* out_n) {
  return copy_structs(rows, "sharpi_memory_row", out, row_size, cap, out_n);
}

Status check_out_struct(const void* out, size_t v1_size, const char* name) {
  SHARPI_TRY(require(out, name));
  uint32_t size = 0;
  std::memcpy(&size, out, sizeof size);
  if (size >= v1_size && size <= kMaxStructBytes) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "%s has struct_size %u, but the first version has %zu bytes and none more "
                       "than %u (was struct_size not set?)",
                       name, size, v1_size, kMaxStructBytes);
}

}  // namespace sharpi::api
