// SPDX-License-Identifier: MIT
// Sets of characters, and how texts spell them: as UTF-8, or as the strings of JSON have them,
// where quotes, backslashes and control characters are escaped, each in one way. Thread rule: plain
// values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar/expressions.h"

namespace sharpi::grammar {

class CodePoints {
 public:
  static constexpr uint32_t kLast = 0x10FFFF;
  static CodePoints all();
  static CodePoints one(uint32_t code_point);

  void add(uint32_t first, uint32_t last);
  void add(const CodePoints& other);
  /// All others. Halves of surrogate pairs are no characters.
  CodePoints inverted() const;
  /// Sorted, apart from each other.
  std::vector<std::pair<uint32_t, uint32_t>> ranges() const;

 private:
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

/// How characters are written.
enum class Spelling : uint8_t { kPlain, kJson };

Expr characters(Expressions& e, const CodePoints& which, Spelling spelling);
/// The quotes are not part of it.
std::string spelled(std::string_view text, Spelling spelling);

}  // namespace sharpi::grammar
