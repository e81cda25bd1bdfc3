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

// Characters beyond ASCII, as well-formed UTF-8 has them.
Expr long_character(Grammar& g) {
  const Expr next = g.set(range(0x80, 0xBF));
  const auto bytes = [&](int first, int last) { return g.set(range(first, last)); };
  return g.either({g.sequence({bytes(0xC2, 0xDF), next}),
                   g.sequence({bytes(0xE0, 0xE0), bytes(0xA0, 0xBF), next}),
                   g.sequence({bytes(0xE1, 0xEC), next, next}),
                   g.sequence({bytes(0xED, 0xED), bytes(0x80, 0x9F), next}),
                   g.sequence({bytes(0xEE, 0xEF), next, next}),
                   g.sequence({bytes(0xF0, 0xF0), bytes(0x90, 0xBF), next, next}),
                   g.sequence({bytes(0xF1, 0xF3), next, next, next}),
                   g.sequence({bytes(0xF4, 0xF4), bytes(0x80, 0x8F), next, next})});
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
  ByteSet plain = range(0x20, 0x7E);
  plain.reset('"');
  plain.reset('\\');
  const Expr hex = g_.set(of("0123456789abcdefABCDEF"));
  // Halves of surrogate pairs are left out: a lone one is no character.
  const Expr code = g_.either({g_.sequence({g_.set(of("0123456789abcefABCEF")), hex, hex, hex}),
                               g_.sequence({g_.set(of("dD")), g_.set(of("01234567")), hex, hex})});
  const Expr escape = g_.sequence(
      {g_.byte('\\'), g_.either({g_.set(of("\"\\/bfnrt")), g_.sequence({g_.byte('u'), code})})});
  plain_character_ = g_.either({g_.set(plain), long_character(g_)});
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

// Such keys are written without escapes, so that no other spelling of a name gets through.
Expr JsonGrammar::other_key(const std::vector<std::string>& keys) {
  return g_.sequence({g_.byte('"'), key_from(keys, 0)});
}

// What may follow the first `n` bytes that the keys have in common, with the closing mark.
Expr JsonGrammar::key_from(const std::vector<std::string>& keys, size_t n) {
  std::map<unsigned char, std::vector<std::string>> next;
  bool is_key = false;
  for (const std::string& key : keys) {
    is_key = is_key || key.size() == n;
    if (key.size() > n) next[static_cast<unsigned char>(key[n])].push_back(key);
  }
  const Expr end = g_.byte('"');
  std::vector<Expr> choices;
  if (!is_key) choices.push_back(end);
  ByteSet other = range(0x20, 0x7E);
  other.reset('"');
  other.reset('\\');
  for (const auto& [byte, longer] : next) {
    other.reset(byte);
    choices.push_back(g_.sequence({g_.byte(byte), key_from(longer, n + 1)}));
  }
  const Expr rest = g_.sequence({g_.repeat(plain_character_, 0, Grammar::kAnyNumber), end});
  if (other.any()) choices.push_back(g_.sequence({g_.set(other), rest}));
  return g_.either(choices);
}

}  // namespace server
