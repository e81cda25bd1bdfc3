// SPDX-License-Identifier: MIT
#include "text/grammar/json_texts.h"

#include "text/grammar/json_numbers.h"
#include "text/grammar/token_tree.h"
#include "text/jinja/characters.h"

namespace sharpi::grammar {
namespace {

// Models that see no end write blanks or digits for ever; these bounds are beyond what anybody
// means: an indentation of 20 levels, and numbers that a double holds.
constexpr uint32_t kMaxIndent = 40;
constexpr uint32_t kMaxExponentDigits = 2;
constexpr uint32_t kAnyNumber = Expressions::kAnyNumber;
// Of a name without quotes that nobody fixed.
constexpr uint32_t kMaxBareWord = 64;
constexpr size_t kMaxBareName = 250;

ByteSet bytes_among(std::string_view bytes) {
  ByteSet out;
  for (const char c : bytes) out.set(static_cast<unsigned char>(c));
  return out;
}

std::string_view mark_of(ValueForm form) {
  if (form == ValueForm::kGemma) return "<|\"|>";
  return form == ValueForm::kFunctionGemma ? "<escape>" : "";
}

}  // namespace

JsonTexts::JsonTexts(Expressions& expressions, ValueForm form)
    : e_(expressions), form_(form), mark_(mark_of(form)) {
  blank_ = e_.either({Expressions::kEmpty, e_.byte(' '),
                      e_.sequence(e_.byte('\n'), e_.repeat(e_.byte(' '), 0, kMaxIndent))});
  const bool python = form == ValueForm::kPython;
  boolean_ = e_.either({e_.bytes(python ? "True" : "true"), e_.bytes(python ? "False" : "false")});
  null_ = e_.bytes(python ? "None" : "null");
  make_strings();
  make_numbers();
  make_values();
}

// Between marks, and in the strings of Python, a text has one spelling.
void JsonTexts::make_strings() {
  plain_character_ =
      characters(e_, CodePoints::all(), is_marked() ? Spelling::kPlain : Spelling::kJson);
  if (form_ != ValueForm::kJson) {
    any_character_ = plain_character_;
    e_.mark_unit(plain_character_);
    quote_ = e_.byte('"');
    if (is_marked()) {
      ByteSet all;
      const Expr any = e_.any_number(e_.set(all.set()));
      quote_ = e_.sequence(e_.optional(e_.byte(TokenTree::kControl)), e_.bytes(mark_));
      not_mark_ = e_.complement(e_.sequence({any, e_.bytes(mark_), any}));
    }
    string_ = string_of_length(0, kAnyNumber);
    return;
  }
  quote_ = e_.byte('"');
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
  const auto members = [&](bool call) {
    const Expr member =
        pair(form_ == ValueForm::kJson ? string_ : other_key({}, call), value_, call);
    return braced(e_.optional(e_.sequence(member, e_.any_number(then(member)))), call);
  };
  object_ = members(false);
  arguments_ = form_ == ValueForm::kPython ? members(true) : object_;
  e_.define(value_, e_.either({string_, number_, object_, array_, boolean_, null_}));
}

Expr JsonTexts::inside_string(Expr character, uint32_t low, uint32_t high) {
  const Expr all = e_.repeat(character, low, high);
  return e_.sequence({quote_, is_marked() ? e_.both(all, not_mark_) : all, quote_});
}

Expr JsonTexts::plain_string(uint32_t low, uint32_t high) {
  return inside_string(plain_character_, low, high);
}

Expr JsonTexts::string_of_length(uint32_t low, uint32_t high) {
  return e_.terminal(inside_string(any_character_, low, high));
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

Expr JsonTexts::pair(Expr key, Expr value, bool call) {
  if (call && form_ == ValueForm::kPython) return e_.sequence({key, e_.byte('='), value});
  return e_.sequence({key, e_.byte(':'), e_.optional(e_.byte(' ')), value});
}

Expr JsonTexts::braced(Expr members, bool call) {
  const bool python = call && form_ == ValueForm::kPython;
  return e_.sequence({e_.byte(python ? '(' : '{'), blank_, e_.sequence(members, blank_),
                      e_.byte(python ? ')' : '}')});
}

Expr JsonTexts::bracketed(Expr items) {
  return e_.sequence({e_.byte('['), blank_, e_.sequence(items, blank_), e_.byte(']')});
}

std::string JsonTexts::quoted(std::string_view text) const {
  const std::string quote(is_marked() ? mark_ : "\"");
  return quote + spelled(text, is_marked() ? Spelling::kPlain : Spelling::kJson) + quote;
}

bool JsonTexts::is_bare(std::string_view name) {
  return !name.empty() && name.size() <= kMaxBareName && name.front() != ' ' &&
         name.back() != ' ' && name.find_first_of("{}[]()<>,:='\"\\\n\r\t") == name.npos;
}

Expr JsonTexts::key(std::string_view name, bool call) {
  const bool python = call && form_ == ValueForm::kPython;
  if (python || is_marked()) {
    if (is_bare(name)) return e_.bytes(name);
    if (python) return Expressions::kNothing;
  }
  if (!is_marked()) return e_.bytes(quoted(name));
  if (name.find(mark_) != name.npos) return Expressions::kNothing;
  return e_.sequence({quote_, e_.bytes(name), quote_});
}

Expr JsonTexts::bare_word() {
  return e_.repeat(e_.set(bytes_among("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
                                      "0123456789")),
                   1, kMaxBareWord);
}

Expr JsonTexts::other_key(const std::vector<std::string_view>& names, bool call) {
  const bool python = call && form_ == ValueForm::kPython;
  std::vector<Expr> choices;
  if (python || is_marked()) {
    choices.push_back(e_.terminal(e_.both(bare_word(), e_.complement(e_.texts(names)))));
  }
  if (!python) {  // with marks it is one of these as well as without
    std::vector<std::string> spelled_names;
    for (const std::string_view name : names) {
      spelled_names.push_back(is_marked() ? std::string(name) : quoted(name));
    }
    Expr named = e_.texts({spelled_names.begin(), spelled_names.end()});
    if (is_marked()) named = e_.sequence({quote_, named, quote_});
    choices.push_back(e_.terminal(e_.both(plain_string(0, kAnyNumber), e_.complement(named))));
  }
  return e_.either(std::move(choices));
}

PatternText JsonTexts::pattern_text() const {
  PatternText out;
  out.spelling = is_marked() ? Spelling::kPlain : Spelling::kJson;
  out.character = plain_character_;
  out.open = out.close = quote_;
  return out;
}

std::string JsonTexts::scalar(const jinja::Value& value) const {
  if (value.is_string()) return quoted(value.bytes());
  if (form_ != ValueForm::kPython) return scalar_text(value);
  if (value.is(jinja::Kind::kBool)) return value.boolean ? "True" : "False";
  return value.is(jinja::Kind::kNone) ? "None" : scalar_text(value);
}

Expr JsonTexts::literal(const jinja::Value& value, bool call) {
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
      const Expr member = pair(key(all[i].first.bytes(), call), literal(all[i].second), call);
      members = e_.sequence(i == 0 ? member : then(member), members);
    }
    return braced(members, call);
  }
  if (has_one_spelling(value)) return e_.bytes(scalar(value));
  if (value.bytes().find(mark_) != value.bytes().npos) return Expressions::kNothing;
  return e_.sequence({quote_, e_.bytes(value.bytes()), quote_});
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
      return "\"" + spelled(value.bytes(), Spelling::kJson) + "\"";
    default:
      return "null";
  }
}

}  // namespace sharpi::grammar
