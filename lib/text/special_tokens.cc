// SPDX-License-Identifier: MIT
#include "text/special_tokens.h"

#include <algorithm>

namespace sharpi {
namespace {

unsigned char byte_at(std::string_view text, size_t i) {
  return static_cast<unsigned char>(text[i]);
}

/// Whether bytes [at, at + bytes) touch one of the spans.
bool touches(std::span<const SpecialTokens::Span> spans, size_t at, size_t bytes) {
  const auto it = std::partition_point(spans.begin(), spans.end(),
                                       [at](const SpecialTokens::Span& s) { return s.end <= at; });
  return it != spans.end() && it->begin < at + bytes;
}

}  // namespace

SpecialTokens::SpecialTokens(std::vector<Entry> entries) : entries_(std::move(entries)) {
  // string_view compares as unsigned bytes; of equal texts the lowest id comes first.
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return a.text != b.text ? a.text < b.text : a.id < b.id;
  });
  for (const Entry& e : entries_) ++first_[byte_at(e.text, 0) + 1u];
  for (size_t b = 0; b < 256; ++b) first_[b + 1] += first_[b];
}

SpecialTokens::Match SpecialTokens::longest_at(std::string_view text, size_t at,
                                               std::span<const Span> foreign) const {
  Match best{at, 0, -1};
  auto low = entries_.begin() + first_[byte_at(text, at)];
  auto high = entries_.begin() + first_[byte_at(text, at) + 1u];
  // [low, high) are the entries that agree with the text in their first `depth` bytes.
  for (size_t depth = 1; low != high; ++depth) {
    if (low->text.size() == depth) {
      if (low->anywhere || !touches(foreign, at, depth)) best = {at, depth, low->id};
      low = std::find_if(low, high, [&](const Entry& e) { return e.text.size() != depth; });
    }
    if (at + depth >= text.size()) break;
    const unsigned char c = byte_at(text, at + depth);
    low =
        std::partition_point(low, high, [&](const Entry& e) { return byte_at(e.text, depth) < c; });
    high = std::partition_point(low, high,
                                [&](const Entry& e) { return byte_at(e.text, depth) == c; });
  }
  return best;
}

SpecialTokens::Match SpecialTokens::next(std::string_view text, size_t from,
                                         std::span<const Span> foreign) const {
  for (size_t at = from; at < text.size(); ++at) {
    const unsigned char c = byte_at(text, at);
    if (first_[c] == first_[c + 1u]) continue;
    const Match match = longest_at(text, at, foreign);
    if (match.id >= 0) return match;
  }
  return {text.size(), 0, -1};
}

}  // namespace sharpi
