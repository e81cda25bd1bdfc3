// SPDX-License-Identifier: MIT
// The hash of the tokenizer's tables: short keys, seeded per table, a few multiplications each.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace sharpi {

/// Both halves of the 128-bit product, folded: every input bit reaches every output bit.
inline uint64_t hash_mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_text(std::string_view text, uint64_t seed) {
  constexpr uint64_t kOdd1 = 0xA0761D6478BD642Fu, kOdd2 = 0xE7037ED1A0B428DBu;
  uint64_t h = seed ^ hash_mix(seed + text.size(), kOdd1);
  const char* p = text.data();
  size_t left = text.size();
  uint64_t word = 0;
  for (; left > 8; left -= 8, p += 8) {
    std::memcpy(&word, p, 8);
    h = hash_mix(h ^ word, kOdd2 ^ seed);
  }
  word = 0;
  if (left > 0) std::memcpy(&word, p, left);
  return hash_mix(h ^ word, kOdd1 ^ seed);
}

}  // namespace sharpi
