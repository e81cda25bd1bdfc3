// SPDX-License-Identifier: MIT
// Calls every accessor of an open GGUF file and reads every byte it hands out, so that a
// sanitizer sees any view that leaves the file. Returns a number that depends on all of it.
// Thread rule: pure function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf_file.h"

namespace sharpi::test {

inline uint64_t walk_metadata(const GgufFile& f) {
  uint64_t sum = 0;
  for (const GgufValue& v : f.values()) {
    if (f.find_value(v.key) != &v) __builtin_trap();
    sum += f.value_text(v).size();
    if (const auto r = f.get_uint(v.key); r.is_ok()) sum += r.value().value_or(0);
    if (const auto r = f.get_float(v.key); r.is_ok()) sum += r.value().value_or(0) > 0 ? 1 : 0;
    if (const auto r = f.get_bool(v.key); r.is_ok()) sum += r.value().value_or(false) ? 1 : 0;
    if (const auto r = f.get_string(v.key); r.is_ok() && r.value().has_value()) {
      for (const char c : *r.value()) sum += static_cast<unsigned char>(c);
    }
    if (const auto r = f.get_int_array(v.key); r.is_ok()) sum += r.value()->size();
    if (const auto r = f.get_float_array(v.key); r.is_ok()) sum += r.value()->size();
    if (const auto r = f.get_string_array(v.key); r.is_ok()) {
      for (const std::string_view s : *r.value()) {
        for (const char c : s) sum += static_cast<unsigned char>(c);
      }
    }
  }
  return sum;
}

inline uint64_t walk_tensors(const GgufFile& f) {
  uint64_t sum = 0;
  for (const GgufTensor& t : f.tensors()) {
    if (f.find_tensor(t.name) != &t) __builtin_trap();
    if (t.data == nullptr && t.bytes != 0) __builtin_trap();
    for (uint64_t i = 0; i < t.bytes; ++i) sum += std::to_integer<uint64_t>(t.data[i]);
    if (!ggml_traits(t.type).computable) continue;
    std::vector<float> row(t.ne[0]);
    dequantize_row(t.type, t.data, row.data(), t.ne[0]);
    sum += row.back() > 0 ? 1 : 0;
  }
  return sum;
}

inline uint64_t walk(const GgufFile& f) {
  return walk_metadata(f) + walk_tensors(f) + f.fingerprint() + f.content_id() + f.file_bytes();
}

}  // namespace sharpi::test
