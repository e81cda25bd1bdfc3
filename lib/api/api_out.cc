// SPDX-License-Identifier: MIT
#include "api/api_out.h"

#include <algorithm>

namespace sharpi::api {
namespace {

// No structure of this ABI will ever be larger; what claims to be is an uninitialised number.
constexpr uint32_t kMaxRowBytes = 4096;

}  // namespace

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
  if (row_size >= known && row_size <= kMaxRowBytes && row_size % 8 == 0) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "row_size %u is no sizeof(%s): that is %zu or, from a newer header, a "
                       "larger multiple of 8 up to %u",
                       row_size, name, known, kMaxRowBytes);
}

Status copy_rows(std::span<const MemoryRow> rows, sharpi_memory_row* out, uint32_t row_size,
                 uint32_t cap, uint32_t* out_n) {
  return copy_structs(rows, "sharpi_memory_row", out, row_size, cap, out_n);
}

Status check_out_struct(const void* out, size_t v1_size, const char* name) {
  SHARPI_TRY(require(out, name));
  uint32_t size = 0;
  std::memcpy(&size, out, sizeof size);
  constexpr uint32_t kMost = 4096;  // no version will have so many: nobody set it
  if (size >= v1_size && size <= kMost) return Status::ok();
  if (size > kMost) {
    return Status::error(Code::kInvalidArgument,
                         "%s has struct_size %u, more than any version has (was it not set?)", name,
                         size);
  }
  return Status::error(
      Code::kInvalidArgument,
      "%s has struct_size %u, but the first version has %zu bytes (was struct_size not set?)", name,
      size, v1_size);
}

}  // namespace sharpi::api
