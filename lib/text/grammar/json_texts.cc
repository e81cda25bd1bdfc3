// SPDX-License-Identifier: MIT
#include "text/grammar/json_texts.h"

#include "text/grammar/json_numbers.h"
#include "text/jinja/characters.h"

namespace sharpi::grammar {
namespace {

// Models that see no end write blanks or digits for ever; these bounds are beyond what anybody
// means: an indentation of 20 levels, and numbers that a double holds.
constexpr uint32_t kMaxIndent = 40;
constexpr uint32_t kMaxExponentDigits = 2;
constexpr uint32_t kAnyNumber = Expressions::kAnyNumber;

ByteSet bytes_among(std::string_view bytes) {
  ByteSet out;
  for (const char c : bytes) out.set(static_cast<unsigned char>(c));
  return out;
}

}  // namespace

JsonTexts::JsonTexts(Expressions& expressions) : e_(expressions) {
  blank_ = e_.either({Expressions::kEmpty, e_.byte(' '),
                      e_.sequence(e_.byte('\n'), e_.repeat(e_.byte(' '), 0, kMaxIndent))});
  boolean_ = e_.either({e_.bytes("true"), e_.bytes("false")});
  null_ = e_.bytes("null");
  make_strings();
  make_numbers();
  make_values();
}

void JsonTexts::make_strings() {
  plain_character_ = characters(e_, CodePoints::all(), Spelling::kJson);
  // Further escapes. A character beyond 16 bits is two of them, which stand together.
  const Expr hex = e_.set(bytes_among("0123456789abcdefABCDEF"));
  const Expr d = e_.set(bytes_among("dD")), u = e_.bytes("\\u");
  const auto surrogate = [&](std::string_view second) {
    return e_.sequence({u, d, e_.set(bytes_among(second)), hex, hex});
  };
  const Expr code =
      e_.either({e_.sequence({e_.set(bytes_among("0123456789abcefABCEF")), hex, hex, hex}),
                 e_.sequence({d, e_.set(bytes_among("01234567")), hex, hex})});
  const Expr letter = e_.sequence(e_.byte('\\'), e_.set(bytes_among("\"\\/bfnrt")));
  any_character_ = e_.either({plain_character_, letter, e_.sequence(u, code),
                              e_.sequence(surrogate("89abAB"), surrogate("cdefCDEF"))});
  e_.mark_unit(plain_character_);
  e_.mark_unit(any_character_);
  string_ = string_of_length(0, kAnyNumber);
}

void JsonTexts::make_numbers() {
  integer_ = any_integer(e_);
  const Expr digit = e_.set(bytes_among("0123456789"));
  const Expr fraction = e_.sequence(e_.byte('.'), e_.repeat(digit, 1, kMaxJsonDigits));
  const Expr exponent =
      e_.sequence({e_.set(bytes_among("eE")), e_.optional(e_.set(bytes_among("+-"))),
                   e_.repeat(digit, 1, kMaxExponentDigits)});
  const Expr whole =
      e_.either({e_.byte('0'), e_.sequence(e_.set(bytes_among("123456789")),
                                           e_.repeat(digit, 0, kMaxJsonDigits - 1))});
  number_ =
      e_.sequence({e_.optional(e_.byte('-')), whole, e_.optional(fraction), e_.optional(exponent)});
}

void JsonTexts::make_values() {
  value_ = e_.rule();
  array_ = list(value_, 0, kAnyNumber);
  const Expr member = pair(string_, value_);
  object_ = braced(e_.optional(e_.sequence(member, e_.any_number(then(member)))));
  e_.define(value_, e_.either({string_, number_, object_, array_, boolean_, null_}));
}

Expr JsonTexts::plain_string(uint32_t low, uint32_t high) {
  return e_.sequence({e_.byte('"'), e_.repeat(plain_character_, low, high), e_.byte('"')});
}

Expr JsonTexts::string_of_length(uint32_t low, uint32_t high) {
  return e_.terminal(
      e_.sequence({e_.byte('"'), e_.repeat(any_character_, low, high), e_.byte('"')}));
}

Expr JsonTexts::then(Expr item) {
  return e_.sequence({e_.byte(','), blank_, item});
}

Expr JsonTexts::list(Expr item, uint32_t low, uint32_t high) {
  if (high == 0 || item == Expressions::kNothing) {
    return low == 0 ? bracketed(Expressions::kEmpty) : Expressions::kNothing;
  }
  const uint32_t rest = high == kAnyNumber ? high : high - 1;
  const Expr some = e_.sequence(item, e_.repeat(then(item), low == 0 ? 0 : low - 1, rest));
  return bracketed(low == 0 ? e_.optional(some) : some);
}

Expr JsonTexts::pair(Expr key, Expr value) {
  return e_.sequence({key, e_.byte(':'), e_.optional(e_.byte(' ')), value});
}

Expr JsonTexts::braced(Expr members) {
  return e_.sequence({e_.byte('{'), blank_, e_.sequence(members, blank_), e_.byte('}')});
}

Expr JsonTexts::bracketed(Expr items) {
  return e_.sequence({e_.byte('['), blank_, e_.sequence(items, blank_), e_.byte(']')});
}

std::string JsonTexts::quoted(std::string_view text) {
  return "\"" + spelled(text, Spelling::kJson) + "\"";
}

Expr JsonTexts::key(std::string_view name) {
  return e_.bytes(quoted(name));
}

PatternText JsonTexts::pattern_text() const {
  PatternText out;
  out.spelling = Spelling::kJson;
  out.character = plain_character_;
  out.open = out.close = e_.byte('"');
  return out;
}

Expr JsonTexts::literal(const jinja::Value& value) {
  if (value.is_listed()) {
    Expr items = Expressions::kEmpty;
    const auto& all = value.list->items;
    for (size_t i = all.size(); i-- > 0;) {
      const Expr item = literal(all[i]);
      items = e_.sequence(i == 0 ? item : then(item), items);
    }
    return bracketed(items);
  }
  if (value.is(jinja::Kind::kDict)) {
    Expr members = Expressions::kEmpty;
    const auto& all = value.dict->items;
    for (size_t i = all.size(); i-- > 0;) {
      const Expr member = pair(key(all[i].first.bytes()), literal(all[i].second));
      members = e_.sequence(i == 0 ? member : then(member), members);
    }
    return braced(members);
  }
  return e_.bytes(scalar_text(value));
}

std::string scalar_text(const jinja::Value& value) {
  switch (value.kind) {
    case jinja::Kind::kBool:
      return value.boolean ? "true" : "false";
    case jinja::Kind::kInt:
      return std::to_string(value.integer);
    case jinja::Kind::kFloat:
      return jinja::represent_real(value.real);
    case jinja::Kind::kNumeral:
      return std::string(value.bytes());
    case jinja::Kind::kString:
      return JsonTexts::quoted(value.bytes());
    default:
      return "null";
  }
}

}  // namespace sharpi::grammar
