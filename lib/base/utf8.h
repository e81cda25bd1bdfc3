// SPDX-License-Identifier: MIT
// UTF-8 at the level of single characters: strict recognition (no overlong forms, no surrogates,
// at most U+10FFFF), decoding and encoding.
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sharpi {

/// Bytes of the character that `lead` begins; 0 if no character begins with it.
constexpr uint32_t utf8_bytes_from_lead(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuation bytes, and C0 and C1, which are always overlong
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

/// Whether `second` may follow the multi-byte `lead`.
constexpr bool utf8_second_fits(unsigned char lead, unsigned char second) {
  switch (lead) {
    case 0xE0:
      return second >= 0xA0 && second <= 0xBF;
    case 0xED:
      return second >= 0x80 && second <= 0x9F;
    case 0xF0:
      return second >= 0x90 && second <= 0xBF;
    case 0xF4:
      return second >= 0x80 && second <= 0x8F;
    default:
      return second >= 0x80 && second <= 0xBF;
  }
}

/// Bytes of the character at text[at]; 0 if there is none. pre: at < text.size().
inline uint32_t utf8_character(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const uint32_t n = utf8_bytes_from_lead(byte(0));
  if (n <= 1) return n;
  if (text.size() - at < n || !utf8_second_fits(byte(0), byte(1))) return 0;
  for (uint32_t i = 2; i < n; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return n;
}

/// Code point of the character of `n` bytes at text[at], as utf8_character() found it.
inline uint32_t utf8_code_point(std::string_view text, size_t at, uint32_t n) {
  const auto byte = [&](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[at + i]));
  };
  switch (n) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

inline void utf8_append(uint32_t code_point, std::string* out) {
  const auto put = [&](uint32_t b) { out->push_back(static_cast<char>(b)); };
  if (code_point < 0x80) return put(code_point);
  if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
  } else {
    if (code_point < 0x10000) {
      put(0xE0 | code_point >> 12);
    } else {
      put(0xF0 | code_point >> 18);
      put(0x80 | (code_point >> 12 & 0x3F));
    }
    put(0x80 | (code_point >> 6 & 0x3F));
  }
  put(0x80 | (code_point & 0x3F));
}

}  // namespace sharpi
