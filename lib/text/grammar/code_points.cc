// SPDX-License-Identifier: MIT
#include "text/grammar/code_points.h"

#include <algorithm>
#include <cstdio>

#include "base/utf8.h"

namespace sharpi::grammar {
namespace {

constexpr uint32_t kFirstSurrogate = 0xD800, kLastSurrogate = 0xDFFF;
constexpr std::string_view kShortEscapes = "\b\f\n\r\t", kTheirLetters = "bfnrt";

// One character, which JSON has to escape.
std::string escaped(uint32_t code_point) {
  const auto c = static_cast<char>(code_point);
  if (c == '"' || c == '\\') return std::string("\\") + c;
  const size_t found = kShortEscapes.find(c);
  if (found != std::string_view::npos) return std::string("\\") + kTheirLetters[found];
  char text[8];
  std::snprintf(text, sizeof text, "\\u%04x", code_point);
  return text;
}

bool needs_escape(uint32_t code_point) {
  return code_point < 0x20 || code_point == '"' || code_point == '\\';
}

Expr byte_range(Expressions& e, uint32_t first, uint32_t last) {
  ByteSet bytes;
  for (uint32_t b = first; b <= last; ++b) bytes.set(b);
  return e.set(bytes);
}

// Characters first to last, all of n bytes: what their bytes from `at` on may be.
Expr utf8_between(Expressions& e, const std::string& first, const std::string& last, size_t at) {
  const auto low = static_cast<unsigned char>(first[at]);
  const auto high = static_cast<unsigned char>(last[at]);
  if (at + 1 == first.size()) return byte_range(e, low, high);
  if (low == high) return e.sequence(e.byte(low), utf8_between(e, first, last, at + 1));
  const std::string least(first.size(), '\x80'), most(first.size(), '\xBF');
  const bool from_least = first.compare(at + 1, std::string::npos, least, at + 1) == 0;
  const bool to_most = last.compare(at + 1, std::string::npos, most, at + 1) == 0;
  std::vector<Expr> choices;
  if (!from_least) {
    choices.push_back(e.sequence(e.byte(low), utf8_between(e, first, most, at + 1)));
  }
  const uint32_t begin = from_least ? low : low + 1u, end = to_most ? high : high - 1u;
  if (begin <= end) {
    choices.push_back(e.sequence(byte_range(e, begin, end), utf8_between(e, least, most, at + 1)));
  }
  if (!to_most) {
    choices.push_back(e.sequence(e.byte(high), utf8_between(e, least, last, at + 1)));
  }
  return e.either(std::move(choices));
}

// Splits where characters get longer.
void add_utf8(Expressions& e, uint32_t first, uint32_t last, std::vector<Expr>* out) {
  for (const uint32_t limit : {0x7Fu, 0x7FFu, 0xFFFFu, CodePoints::kLast}) {
    if (first > last) return;
    if (first > limit) continue;
    const uint32_t end = std::min(last, limit);
    std::string from, to;
    utf8_append(first, &from);
    utf8_append(end, &to);
    out->push_back(utf8_between(e, from, to, 0));
    first = end + 1;
  }
}

}  // namespace

CodePoints CodePoints::all() {
  CodePoints out;
  out.add(0, kFirstSurrogate - 1);
  out.add(kLastSurrogate + 1, kLast);
  return out;
}

CodePoints CodePoints::one(uint32_t code_point) {
  CodePoints out;
  out.add(code_point, code_point);
  return out;
}

void CodePoints::add(uint32_t first, uint32_t last) {
  if (first < kFirstSurrogate && last > kLastSurrogate) {
    ranges_.push_back({first, kFirstSurrogate - 1});
    first = kLastSurrogate + 1;
  }
  if (first >= kFirstSurrogate && first <= kLastSurrogate) first = kLastSurrogate + 1;
  if (last >= kFirstSurrogate && last <= kLastSurrogate) last = kFirstSurrogate - 1;
  if (first <= last) ranges_.push_back({first, std::min(last, kLast)});
}

void CodePoints::add(const CodePoints& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
}

std::vector<std::pair<uint32_t, uint32_t>> CodePoints::ranges() const {
  std::vector<std::pair<uint32_t, uint32_t>> sorted = ranges_, out;
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [first, last] : sorted) {
    if (!out.empty() && first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, last);
    } else {
      out.push_back({first, last});
    }
  }
  return out;
}

CodePoints CodePoints::inverted() const {
  CodePoints out;
  uint32_t next = 0;
  for (const auto& [first, last] : ranges()) {
    if (first > next) out.add(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) out.add(next, kLast);
  return out;
}

Expr characters(Expressions& e, const CodePoints& which, Spelling spelling) {
  std::vector<Expr> choices;
  ByteSet single;
  for (auto [first, last] : which.ranges()) {
    for (; first <= last && first < 0x80; ++first) {
      if (spelling == Spelling::kJson && needs_escape(first)) {
        choices.push_back(e.bytes(escaped(first)));
      } else {
        single.set(first);
      }
    }
    if (first <= last) add_utf8(e, first, last, &choices);
  }
  choices.push_back(e.set(single));
  return e.either(std::move(choices));
}

std::string spelled(std::string_view text, Spelling spelling) {
  if (spelling == Spelling::kPlain) return std::string(text);
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (needs_escape(byte)) {
      out += escaped(byte);
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace sharpi::grammar
