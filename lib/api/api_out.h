// SPDX-License-Identifier: MIT
// Answers in the caller's memory: texts, arrays, rows and out-structs. A buffer that is too small
// is not touched; the out-length always says what is needed. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "api/api_guard.h"
#include "plan/tier_sizer.h"

namespace sharpi::api {

/// kBufferTooSmall naming both sizes.
Status too_small(uint64_t cap, uint64_t needed, const char* unit);

/// The checks of every (out, cap, out_n) triple: out_n present, out present unless cap is 0.
Status check_out(const void* out, uint64_t cap, const void* out_n);

/// kInvalidArgument unless row_size is `known`, or larger as newer headers may have it.
Status check_row_size(uint32_t row_size, size_t known, const char* name);
/// kUnsupported naming element i of the caller's `list` if it has a byte set behind the first
/// `known` ones: a newer header may say there what this library would not do.
Status check_row_tail(const void* row, size_t known, uint32_t row_size, const char* list,
                      uint32_t i);

Status copy_text(std::string_view text, char* out, size_t cap, size_t* out_len);

template <class T>
Status copy_array(std::span<const T> values, T* out, uint32_t cap, uint32_t* out_n) {
  SHARPI_TRY(check_out(out, cap, out_n));
  *out_n = static_cast<uint32_t>(values.size());
  if (cap < values.size()) return too_small(cap, values.size(), "elements");
  if (!values.empty()) std::memcpy(out, values.data(), values.size_bytes());
  return Status::ok();
}

/// An array of structs without struct_size: row_size is the sizeof at the caller.
template <class T>
Status copy_structs(std::span<const T> values, const char* name, T* out, uint32_t row_size,
                    uint32_t cap, uint32_t* out_n) {
  SHARPI_TRY(check_out(out, cap, out_n));
  SHARPI_TRY(check_row_size(row_size, sizeof(T), name));
  *out_n = static_cast<uint32_t>(values.size());
  if (cap < values.size()) return too_small(cap, values.size(), "rows");
  auto* to = reinterpret_cast<char*>(out);
  for (const T& value : values) {
    std::memcpy(to, &value, sizeof value);
    std::memset(to + sizeof value, 0, row_size - sizeof value);
    to += row_size;
  }
  return Status::ok();
}

/// row_size: what the caller's rows measure. A newer caller's extra bytes are zeroed.
Status copy_rows(std::span<const MemoryRow> rows, sharpi_memory_row* out, uint32_t row_size,
                 uint32_t cap, uint32_t* out_n);

/// First-version sizes of the out-structs: less is a forgotten struct_size.
Status check_out_struct(const void* out, size_t v1_size, const char* name);

/// Writes struct_size bytes, which stays the caller's; fields that only a newer header has are 0.
/// Pre: check_out_struct().
template <class T>
void write_out(T value, T* out) {
  const uint32_t size = value.struct_size = out->struct_size;
  std::memcpy(out, &value, std::min<size_t>(size, sizeof value));
  if (size > sizeof value)
    std::memset(reinterpret_cast<char*>(out) + sizeof value, 0, size - sizeof value);
}

}  // namespace sharpi::api
