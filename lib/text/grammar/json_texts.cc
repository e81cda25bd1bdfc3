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

constexpr std::string_view kParameterEnd = "\n</parameter>", kArgumentEnd = "</arg_value>";

std::string_view mark_of(ValueForm form, std::string_view close) {
  if (form == ValueForm::kGemma) return "<|\"|>";
  if (form == ValueForm::kUntilTag) return close.substr(close.find('<'));
  return form == ValueForm::kFunctionGemma ? "<escape>" : "";
}

bool has_tags(ValueForm form) {
  return form == ValueForm::kParameterTags || form == ValueForm::kArgumentTags;
}

// The name can stand without quotes, whatever stands around it.
bool is_bare(std::string_view name) {
  return !name.empty() && name.size() <= kMaxBareName && name.front() != ' ' &&
         name.back() != ' ' && name.find_first_of("{}[]()<>,:='\"\\\n\r\t") == name.npos;
}

// The same between tags.
bool is_bare_in_tag(std::string_view name) {
  return !name.empty() && name.size() <= kMaxBareName && name.front() != ' ' &&
         name.back() != ' ' && name.find_first_of("<>\n\r\t") == name.npos;
}

}  // namespace

JsonTexts::JsonTexts(Expressions& expressions, ValueForm form, Expr close,
                     std::string_view close_text)
    : e_(expressions),
      form_(form),
      mark_(mark_of(form, close_text)),
      open_text_(form == ValueForm::kUntilTag ? ""
                 : mark_.empty()              ? "\""
                                              : mark_),
      close_text_(form == ValueForm::kUntilTag ? close_text : open_text_),
      close_(close) {
  blank_ = e_.either({Expressions::kEmpty, e_.byte(' '),
                      e_.sequence(e_.byte('\n'), e_.repeat(e_.byte(' '), 0, kMaxIndent))});
  const bool python = form == ValueForm::kPython;
  boolean_ = e_.either({e_.bytes(python ? "True" : "true"), e_.bytes(python ? "False" : "false")});
  null_ = e_.bytes(python ? "None" : "null");
  make_strings();
  make_numbers();
  if (has_tags(form)) make_tags();
  make_values();
}

// Between marks, and in the strings of Python, a text has one spelling.
void JsonTexts::make_strings() {
  plain_character_ =
      characters(e_, CodePoints::all(), is_marked() ? Spelling::kPlain : Spelling::kJson);
  open_ = e_.byte('"');
  if (form_ != ValueForm::kJson && !has_tags(form_)) {
    any_character_ = plain_character_;
    e_.mark_unit(plain_character_);
    if (is_marked()) {
      ByteSet all;
      const Expr any = e_.any_number(e_.set(all.set()));
      open_ = tag(mark_);
      not_mark_ = e_.complement(e_.sequence({any, e_.bytes(mark_), any}));
    }
    const bool until_tag = form_ == ValueForm::kUntilTag;
    if (until_tag) open_ = Expressions::kEmpty;
    if (!until_tag) close_ = open_;
    string_ = string_of_length(0, kAnyNumber);
    return;
  }
  close_ = open_;
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
    const bool json = form_ == ValueForm::kJson || (has_tags(form_) && !call);
    const Expr value = call && tagged_ != nullptr ? tagged_->string() : value_;
    const Expr member = pair(json ? string_ : other_key({}, call), value, call);
    return braced(e_.optional(e_.sequence(member, e_.any_number(then(member, call)))), call);
  };
  object_ = members(false);
  arguments_ = names_are_strings(true) ? object_ : members(true);
  e_.define(value_, e_.either({string_, number_, object_, array_, boolean_, null_}));
}

// What a control token or plain text can spell.
Expr JsonTexts::tag(std::string_view text) {
  return e_.sequence(e_.optional(e_.byte(TokenTree::kControl)), e_.bytes(text));
}

void JsonTexts::make_tags() {
  const bool parameter = form_ == ValueForm::kParameterTags;
  close_tag_ = parameter ? e_.bytes(kParameterEnd) : tag(kArgumentEnd);
  tagged_ = std::make_unique<JsonTexts>(e_, ValueForm::kUntilTag, close_tag_,
                                        parameter ? kParameterEnd : kArgumentEnd);
}

Expr JsonTexts::tagged_key(Expr name) {
  if (form_ == ValueForm::kParameterTags) {
    return e_.sequence({e_.bytes("<parameter="), name, e_.bytes(">\n")});
  }
  return e_.sequence(
      {tag("<arg_key>"), name, tag("</arg_key>"), e_.optional(e_.byte('\n')), tag("<arg_value>")});
}

Expr JsonTexts::inside_string(Expr character, uint32_t low, uint32_t high) {
  const Expr all = e_.repeat(character, low, high);
  return e_.sequence({open_, is_marked() ? e_.both(all, not_mark_) : all, close_});
}

Expr JsonTexts::plain_string(uint32_t low, uint32_t high) {
  return inside_string(plain_character_, low, high);
}

Expr JsonTexts::string_of_length(uint32_t low, uint32_t high) {
  return e_.terminal(inside_string(any_character_, low, high));
}

Expr JsonTexts::then(Expr item, bool call) {
  if (call && tagged_ != nullptr) return item;
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
  if (call && form_ == ValueForm::kParameterTags) return e_.sequence({key, value, e_.byte('\n')});
  if (call && tagged_ != nullptr) return e_.sequence({key, value, e_.optional(e_.byte('\n'))});
  return e_.sequence({key, e_.byte(':'), e_.optional(e_.byte(' ')), value});
}

Expr JsonTexts::braced(Expr members, bool call) {
  if (call && tagged_ != nullptr) return members;
  const bool python = call && form_ == ValueForm::kPython;
  return e_.sequence({e_.byte(python ? '(' : '{'), blank_, e_.sequence(members, blank_),
                      e_.byte(python ? ')' : '}')});
}

Expr JsonTexts::bracketed(Expr items) {
  return e_.sequence({e_.byte('['), blank_, e_.sequence(items, blank_), e_.byte(']')});
}

std::string JsonTexts::quoted(std::string_view text) const {
  return open_text_ + spelled(text, is_marked() ? Spelling::kPlain : Spelling::kJson) + close_text_;
}

bool JsonTexts::is_function_name(std::string_view name) const {
  if (tagged_ == nullptr) return is_bare(name);
  return is_bare_in_tag(name) && name.find_first_of(" {}[]\"") == name.npos &&
         !name.starts_with("call:");
}

Expr JsonTexts::key(std::string_view name, bool call) {
  if (call && tagged_ != nullptr) {
    return is_bare_in_tag(name) ? tagged_key(e_.bytes(name)) : Expressions::kNothing;
  }
  const bool bare = is_bare_key(call);
  if (bare || is_marked()) {
    if (is_bare(name)) return e_.bytes(name);
    if (bare) return Expressions::kNothing;
  }
  if (!is_marked()) return e_.bytes(quoted(name));
  if (name.find(mark_) != name.npos) return Expressions::kNothing;
  return e_.sequence({open_, e_.bytes(name), close_});
}

Expr JsonTexts::bare_word() {
  return e_.repeat(e_.set(bytes_among("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
                                      "0123456789")),
                   1, kMaxBareWord);
}

Expr JsonTexts::other_key(const std::vector<std::string_view>& names, bool call) {
  const bool bare = is_bare_key(call);
  std::vector<Expr> choices;
  if (bare || is_marked()) {
    const Expr word = e_.terminal(e_.both(bare_word(), e_.complement(e_.texts(names))));
    choices.push_back(bare && tagged_ != nullptr ? tagged_key(word) : word);
  }
  if (!bare) {  // with marks it is one of these as well as without
    std::vector<std::string> spelled_names;
    for (const std::string_view name : names) {
      spelled_names.push_back(is_marked() ? std::string(name) : quoted(name));
    }
    Expr named = e_.texts({spelled_names.begin(), spelled_names.end()});
    if (is_marked()) named = e_.sequence({open_, named, close_});
    choices.push_back(e_.terminal(e_.both(plain_string(0, kAnyNumber), e_.complement(named))));
  }
  return e_.either(std::move(choices));
}

PatternText JsonTexts::pattern_text() const {
  PatternText out;
  out.spelling = is_marked() ? Spelling::kPlain : Spelling::kJson;
  out.character = plain_character_;
  out.open = open_;
  out.close = close_;
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
  return e_.sequence({open_, e_.bytes(value.bytes()), close_});
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
