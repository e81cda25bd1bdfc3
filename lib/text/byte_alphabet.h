// SPDX-License-Identifier: MIT
// The alphabet in which byte-level BPE vocabularies spell bytes: printable Latin-1 characters stand
// for themselves, the other 68 bytes for U+0100 and up in increasing order.
// Thread rule: constants.
#pragma once

#include <array>
#include <cstdint>

namespace sharpi {

constexpr uint32_t kByteAlphabetEnd = 0x100 + 68;

constexpr bool byte_spells_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

/// [byte] -> code point.
constexpr std::array<uint32_t, 256> kByteAlphabet = [] {
  std::array<uint32_t, 256> out{};
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) out[b] = byte_spells_itself(b) ? b : next++;
  return out;
}();

/// [code point] -> byte, -1 for a code point outside the alphabet.
constexpr std::array<int16_t, kByteAlphabetEnd> kByteOfAlphabet = [] {
  std::array<int16_t, kByteAlphabetEnd> out{};
  for (int16_t& b : out) b = -1;
  for (uint32_t b = 0; b < 256; ++b) out[kByteAlphabet[b]] = static_cast<int16_t>(b);
  return out;
}();

}  // namespace sharpi
