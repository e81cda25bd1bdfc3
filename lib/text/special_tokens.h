// SPDX-License-Identifier: MIT
// Finds the tokens that are recognised in raw text before any splitting: leftmost first, at one
// place the longest.
// Thread rule: immutable after construction; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sharpi {

class SpecialTokens {
 public:
  /// The cost of a search is bounded by text length x this.
  static constexpr size_t kMaxBytes = 512;
  struct Entry {
    std::string_view text;  // 1 to kMaxBytes bytes
    int32_t id;
    bool anywhere = true;  // also where text is foreign
  };
  /// Bytes [begin, end) of a text in which only tokens for anywhere are found.
  struct Span {
    size_t begin, end;
  };
  struct Match {
    size_t at = 0;
    size_t bytes = 0;
    int32_t id = -1;  // -1: no match up to the end of the text
  };

  SpecialTokens() = default;
  explicit SpecialTokens(std::vector<Entry> entries);
  /// The first match at or after `from`; with none, {text.size(), 0, -1}.
  Match next(std::string_view text, size_t from) const { return next(text, from, {}); }
  /// The same, but tokens that are not for anywhere must not touch a span of `foreign` (ascending).
  Match next(std::string_view text, size_t from, std::span<const Span> foreign) const;

 private:
  Match longest_at(std::string_view text, size_t at, std::span<const Span> foreign) const;
  std::vector<Entry> entries_;         // ascending by bytes of text
  std::array<uint32_t, 257> first_{};  // [byte] -> first entry whose text begins with it
};

}  // namespace sharpi
