// SPDX-License-Identifier: MIT
// The parts of JSON texts as expressions, or of values as the calls of some models write them.
// Blanks are bounded, and so are the digits of numbers.
// Thread rule: one thread an object.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/expressions.h"
#include "text/grammar/pattern.h"
#include "text/jinja/value.h"

namespace sharpi::grammar {

/// How values are written. Where it is not JSON, the words of a schema mean the same values.
enum class ValueForm : uint8_t {
  kJson,
  kGemma,          // strings between marks <|"|>, names as they are: {city:<|"|>Rome<|"|>,n:3}
  kFunctionGemma,  // the same with marks <escape>
  kPython,         // arguments (city="Rome", n=3), values with True, False and None in them
};

class JsonTexts {
 public:
  /// Of JSON, the first thing that is made in `expressions`, so that it is the same in all of them.
  explicit JsonTexts(Expressions& expressions, ValueForm form = ValueForm::kJson);
  JsonTexts(const JsonTexts&) = delete;
  JsonTexts& operator=(const JsonTexts&) = delete;

  Expr value() const { return value_; }
  Expr object() const { return object_; }
  Expr array() const { return array_; }
  Expr string() const { return string_; }
  Expr number() const { return number_; }
  Expr integer() const { return integer_; }
  Expr boolean() const { return boolean_; }
  Expr null() const { return null_; }
  Expr blank() const { return blank_; }
  /// A string without escapes that it could do without, not a terminal yet.
  Expr plain_string(uint32_t low, uint32_t high);
  /// Any spelling.
  Expr string_of_length(uint32_t low, uint32_t high);
  /// A comma and what follows it.
  Expr then(Expr item);
  Expr list(Expr item, uint32_t low, uint32_t high);
  Expr bracketed(Expr items);
  // Of an object, or, with `call`, of a call's arguments: some forms write these otherwise.
  Expr pair(Expr key, Expr value, bool call = false);
  Expr braced(Expr members, bool call = false);
  /// Nothing: this form cannot write the name.
  Expr key(std::string_view name, bool call = false);
  /// Any name but these.
  Expr other_key(const std::vector<std::string_view>& names, bool call = false);
  /// Arguments of which nothing is known.
  Expr any_arguments() const { return arguments_; }
  /// Whether names of arguments are the strings of JSON or of this form, which have patterns.
  bool names_are_strings(bool call) const { return form_ != ValueForm::kPython || !call; }
  /// A value as it is; blanks where they may be.
  Expr literal(const jinja::Value& value, bool call = false);
  /// A scalar of which no part can be spelled in two ways; literal() otherwise.
  bool has_one_spelling(const jinja::Value& scalar) const {
    return !is_marked() || !scalar.is_string();
  }
  std::string scalar(const jinja::Value& value) const;
  /// Where patterns of strings are looked for.
  PatternText pattern_text() const;
  /// Patterns alone do not say what strings are: no mark may stand in them.
  bool has_marks_around_strings() const { return is_marked(); }

  /// The name can stand without quotes, whatever stands around it.
  static bool is_bare(std::string_view name);
  /// A string as this form writes it.
  std::string quoted(std::string_view text) const;

 private:
  bool is_marked() const {
    return form_ == ValueForm::kGemma || form_ == ValueForm::kFunctionGemma;
  }
  Expr bare_word();
  Expr inside_string(Expr character, uint32_t low, uint32_t high);
  void make_strings();
  void make_numbers();
  void make_values();

  Expressions& e_;
  const ValueForm form_;
  const std::string_view mark_;  // around strings; empty: a quotation mark
  Expr quote_ = 0, not_mark_ = 0;
  Expr any_character_ = 0, plain_character_ = 0, blank_ = 0;
  Expr string_ = 0, number_ = 0, integer_ = 0, boolean_ = 0, null_ = 0;
  Expr value_ = 0, object_ = 0, array_ = 0, arguments_ = 0;
};

/// A scalar as JSON writes it. pre: null, a boolean, a number or a string.
std::string scalar_text(const jinja::Value& value);

}  // namespace sharpi::grammar
