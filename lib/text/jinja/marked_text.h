// SPDX-License-Identifier: MIT
// Text that knows where its bytes come from: the template's author, or a value of the conversation.
// Every operation of the interpreter carries that along, so that what a user wrote can never be
// taken for a control token of the template.
// Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sharpi::jinja {

/// Bytes [begin, end) of a text that came from a value.
struct ForeignSpan {
  size_t begin, end;
};

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string_view bytes, bool foreign) { append(bytes, foreign); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  bool has_foreign() const { return !flips_.empty(); }
  /// What knowing the origins takes besides the text: texts of many short parts are large by it.
  size_t mark_bytes() const { return flips_.size() * sizeof(uint32_t); }
  bool foreign_at(size_t at) const;
  /// Whether any of the bytes [from, to) is. pre: from < to.
  bool foreign_in(size_t from, size_t to) const;
  /// Ascending, not touching each other.
  std::vector<ForeignSpan> foreign_spans() const;

  void append(std::string_view bytes, bool foreign);
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  /// Bytes [from, to) of another text. pre: from <= to <= other.size().
  void append(const MarkedText& other, size_t from, size_t to);
  /// The same origin for all that is there.
  void mark_all(bool foreign);
  void reserve(size_t n) { bytes_.reserve(n); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
  /// Where the origin changes, ascending; text begins as the template's. An odd count: the last
  /// part is foreign up to the end. 32 bits, because a rendering is bounded far below 4 GiB.
  std::vector<uint32_t> flips_;
};

}  // namespace sharpi::jinja
