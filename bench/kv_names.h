// SPDX-License-Identifier: MIT
// KV dtypes by name, and what they take: what the benches know of codecs, counted apart from the
// library, whose plans they check. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "sharpi.h"

namespace sharpi::bench {

struct KvName {
  const char* name;
  sharpi_kv_dtype dtype;
  uint64_t bytes_of_32;  // elements
};
inline constexpr KvName kKvNames[] = {{"auto", SHARPI_KV_AUTO, 0},
                                      {"f32", SHARPI_KV_F32, 128},
                                      {"bf16", SHARPI_KV_BF16, 64},
                                      {"q8_0", SHARPI_KV_Q8_0, 34},
                                      {"q4", SHARPI_KV_Q4, 18}};

/// nullptr where there is no such name, or no such number.
inline const KvName* kv_of_name(const std::string& name) {
  for (const KvName& k : kKvNames) {
    if (k.name == name) return &k;
  }
  return nullptr;
}
inline const KvName* kv_of(sharpi_kv_dtype dtype) {
  for (const KvName& k : kKvNames) {
    if (k.dtype == dtype) return &k;
  }
  return nullptr;
}

/// Bytes of rows of so many elements in all; 0 for a dtype that is not in the list. Pre: rows are
/// whole blocks.
inline uint64_t kv_bytes(sharpi_kv_dtype dtype, uint64_t elements) {
  const KvName* k = kv_of(dtype);
  return k == nullptr ? 0 : elements * k->bytes_of_32 / 32;
}

}  // namespace sharpi::bench
