// SPDX-License-Identifier: MIT
#include <algorithm>

#include "json_schema.h"
#include "sse.h"

namespace server {
namespace {

// Models that see no end write blanks or digits for ever; these bounds are beyond what anybody
// means: an indentation of 20 levels, and numbers that a double holds.
constexpr uint32_t kMaxIndent = 40;
constexpr uint32_t kMaxDigits = 15;
constexpr uint32_t kMaxExponentDigits = 2;

ByteSet range(int first, int last) {
  ByteSet out;
  for (int i = first; i <= last; ++i) out.set(static_cast<size_t>(i));
  return out;
}

ByteSet of(std::string_view bytes) {
  ByteSet out;
  for (const char c : bytes) out.set(static_cast<unsigned char>(c));
  return out;
}

// Characters beyond ASCII, as well-formed UTF-8 has them: the bytes that begin them, what may come
// second behind these, and how many more come after that.
struct LongCharacter {
  int first, last, second_low, second_high, n_after;
};
constexpr LongCharacter kLongCharacters[] = {
    {0xC2, 0xDF, 0x80, 0xBF, 0}, {0xE0, 0xE0, 0xA0, 0xBF, 1}, {0xE1, 0xEC, 0x80, 0xBF, 1},
    {0xED, 0xED, 0x80, 0x9F, 1}, {0xEE, 0xEF, 0x80, 0xBF, 1}, {0xF0, 0xF0, 0x90, 0xBF, 2},
    {0xF1, 0xF3, 0x80, 0xBF, 2}, {0xF4, 0xF4, 0x80, 0x8F, 2}};

Expr continuation(Grammar& g, int n) {
  return g.sequence(std::vector<Expr>(static_cast<size_t>(n), g.set(range(0x80, 0xBF))));
}

// Those that begin with one of these bytes.
std::vector<Expr> long_characters(Grammar& g, const ByteSet& beginnings) {
  std::vector<Expr> out;
  for (const LongCharacter& one : kLongCharacters) {
    const ByteSet begin = range(one.first, one.last) & beginnings;
    if (begin.none()) continue;
    out.push_back(g.sequence({g.set(begin), g.set(range(one.second_low, one.second_high)),
                              continuation(g, one.n_after)}));
  }
  return out;
}

// The bytes that may go on a character in the middle of which a text ends, and how many come after
// one of them. No bytes: the text ends with a whole character.
struct Cut {
  ByteSet next;
  int n_after = 0;
};
Cut cut_of(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0 && (static_cast<unsigned char>(text[begin - 1]) & 0xC0) == 0x80) --begin;
  if (begin == 0) return {};
  const int lead = static_cast<unsigned char>(text[begin - 1]);
  const int n_behind = static_cast<int>(text.size() - begin);
  for (const LongCharacter& one : kLongCharacters) {
    if (lead < one.first || lead > one.last || n_behind > one.n_after) continue;
    if (n_behind == 0) return {range(one.second_low, one.second_high), one.n_after};
    return {range(0x80, 0xBF), one.n_after - n_behind};
  }
  return {};
}

// What strings have without an escape.
ByteSet plain_bytes() {
  ByteSet out = range(0x20, 0x7E);
  out.reset('"');
  out.reset('\\');
  return out;
}

}  // namespace

JsonGrammar::JsonGrammar(Grammar& grammar) : g_(grammar) {
  blank_ = g_.either({g_.empty(), g_.byte(' '),
                      g_.sequence({g_.byte('\n'), g_.repeat(g_.byte(' '), 0, kMaxIndent)})});
  boolean_ = g_.either({g_.bytes("true"), g_.bytes("false")});
  null_ = g_.bytes("null");
  make_string();
  make_number();
  value_ = g_.rule();
  array_ = list(value_, 0, Grammar::kAnyNumber);
  const Expr member = pair(string_, value_);
  const Expr more = g_.sequence({g_.byte(','), blank_, member});
  object_ = g_.sequence(
      {g_.byte('{'), blank_,
       g_.optional(g_.sequence({member, g_.repeat(more, 0, Grammar::kAnyNumber), blank_})),
       g_.byte('}')});
  g_.define(value_, g_.either({string_, number_, object_, array_, boolean_, null_}));
}

void JsonGrammar::make_string() {
  const Expr hex = g_.set(of("0123456789abcdefABCDEF"));
  // Halves of surrogate pairs are left out: a lone one is no character.
  const Expr code = g_.either({g_.sequence({g_.set(of("0123456789abcefABCEF")), hex, hex, hex}),
                               g_.sequence({g_.set(of("dD")), g_.set(of("01234567")), hex, hex})});
  const Expr escape = g_.sequence(
      {g_.byte('\\'), g_.either({g_.set(of("\"\\/bfnrt")), g_.sequence({g_.byte('u'), code})})});
  plain_character_ =
      g_.either({g_.set(plain_bytes()), g_.either(long_characters(g_, range(0x80, 0xFF)))});
  character_ = g_.either({plain_character_, escape});
  string_ = string_of_length(0, Grammar::kAnyNumber);
}

void JsonGrammar::make_number() {
  const Expr digit = g_.set(of("0123456789"));
  const Expr whole = g_.either(
      {g_.byte('0'), g_.sequence({g_.set(of("123456789")), g_.repeat(digit, 0, kMaxDigits - 1)})});
  integer_ = g_.sequence({g_.optional(g_.byte('-')), whole});
  const Expr fraction = g_.sequence({g_.byte('.'), g_.repeat(digit, 1, kMaxDigits)});
  const Expr exponent = g_.sequence(
      {g_.set(of("eE")), g_.optional(g_.set(of("+-"))), g_.repeat(digit, 1, kMaxExponentDigits)});
  number_ = g_.sequence({integer_, g_.optional(fraction), g_.optional(exponent)});
}

Expr JsonGrammar::string_of_length(uint32_t low, uint32_t high) {
  return g_.sequence({g_.byte('"'), g_.repeat(character_, low, high), g_.byte('"')});
}

Expr JsonGrammar::list(Expr item, uint32_t low, uint32_t high) {
  const Expr none = g_.sequence({g_.byte('['), blank_, g_.byte(']')});
  if (high == 0) return none;
  const Expr more = g_.sequence({g_.byte(','), blank_, item});
  const uint32_t rest = high == Grammar::kAnyNumber ? high : high - 1;
  const Expr some =
      g_.sequence({g_.byte('['), blank_, item, g_.repeat(more, low == 0 ? 0 : low - 1, rest),
                   blank_, g_.byte(']')});
  return low == 0 ? g_.either({none, some}) : some;
}

Expr JsonGrammar::pair(Expr key, Expr value) {
  return g_.sequence({key, g_.byte(':'), g_.optional(g_.byte(' ')), value});
}

Expr JsonGrammar::literal(const json& value) {
  return g_.bytes(dump(value));
}

// Such keys are written without escapes, so that no other spelling of a name gets through. Names
// that cannot be written so are none of them anyway.
Expr JsonGrammar::other_key(std::vector<std::string> keys) {
  const ByteSet plain = plain_bytes() | range(0x80, 0xFF);
  std::erase_if(keys, [&](const std::string& key) {
    return std::any_of(key.begin(), key.end(),
                       [&](char c) { return !plain[static_cast<unsigned char>(c)]; });
  });
  std::sort(keys.begin(), keys.end());
  return g_.sequence({g_.byte('"'), key_from(keys, 0)});
}

// What may follow the first `n` bytes, which the keys have in common, with the closing mark. The
// keys are sorted. Within a character nothing is offered but what goes on with it.
Expr JsonGrammar::key_from(std::span<const std::string> keys, size_t n) {
  const bool is_key = !keys.empty() && keys.front().size() == n;
  const Cut cut = keys.empty() ? Cut{} : cut_of(std::string_view(keys.front()).substr(0, n));
  const Expr end = g_.byte('"');
  const Expr rest = g_.sequence({g_.repeat(plain_character_, 0, Grammar::kAnyNumber), end});
  ByteSet others = cut.next.any() ? cut.next : plain_bytes() | range(0x80, 0xFF);
  std::vector<Expr> choices;
  for (size_t i = is_key ? 1 : 0; i < keys.size();) {
    size_t after = i;
    while (after < keys.size() && keys[after][n] == keys[i][n]) ++after;
    const auto byte = static_cast<unsigned char>(keys[i][n]);
    others.reset(byte);
    choices.push_back(g_.sequence({g_.byte(byte), key_from(keys.subspan(i, after - i), n + 1)}));
    i = after;
  }
  if (cut.next.any()) {
    if (others.any()) {
      choices.push_back(g_.sequence({g_.set(others), continuation(g_, cut.n_after), rest}));
    }
    return g_.either(choices);
  }
  if (!is_key) choices.push_back(end);
  const ByteSet short_ones = others & plain_bytes();
  if (short_ones.any()) choices.push_back(g_.sequence({g_.set(short_ones), rest}));
  for (const Expr one : long_characters(g_, others)) choices.push_back(g_.sequence({one, rest}));
  return g_.either(choices);
}

}  // namespace server
