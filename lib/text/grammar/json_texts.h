// SPDX-License-Identifier: MIT
// The parts of JSON texts as expressions, or of values as the calls of some models write them.
// Blanks are bounded, and so are the digits of numbers.
// Thread rule: one thread an object.
#pragma once

#include <memory>
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
  kParameterTags,  // arguments <parameter=city>\nRome\n</parameter>, which are texts as they are or
                   // JSON
  kArgumentTags,   // the same as <arg_key>city</arg_key>\n<arg_value>Rome</arg_value>
  kUntilTag,       // such a text, up to and with its closing tag
};

class JsonTexts {
 public:
  /// Of JSON, the first thing that is made in `expressions`, so that it is the same in all of them.
  /// @param close of kUntilTag: the tag, and what stands before it.
  explicit JsonTexts(Expressions& expressions, ValueForm form = ValueForm::kJson,
                     Expr close = Expressions::kEmpty, std::string_view close_text = {});
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
  /// A comma and what follows it, which arguments between tags have none of.
  Expr then(Expr item, bool call = false);
  Expr list(Expr item, uint32_t low, uint32_t high);
  Expr bracketed(Expr items);
  /// Of arguments between tags: those that are texts. Null: this form has no such arguments.
  JsonTexts* tagged() { return tagged_.get(); }
  /// A value of JSON as such an argument.
  Expr closed(Expr value) { return e_.sequence(value, close_tag_); }
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
  bool names_are_strings(bool call) const {
    return !call || (form_ != ValueForm::kPython && tagged_ == nullptr);
  }
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

  /// A call can begin with this name of a function.
  bool is_function_name(std::string_view name) const;
  /// A string as this form writes it.
  std::string quoted(std::string_view text) const;

 private:
  bool is_marked() const {
    return form_ == ValueForm::kGemma || form_ == ValueForm::kFunctionGemma ||
           form_ == ValueForm::kUntilTag;
  }
  bool is_bare_key(bool call) const { return call && !names_are_strings(call); }
  Expr tag(std::string_view text);
  Expr tagged_key(Expr name);
  void make_tags();
  Expr bare_word();
  Expr inside_string(Expr character, uint32_t low, uint32_t high);
  void make_strings();
  void make_numbers();
  void make_values();

  Expressions& e_;
  const ValueForm form_;
  const std::string_view mark_;  // that ends strings; empty: a quotation mark
  const std::string open_text_, close_text_;
  Expr open_ = 0, close_ = 0, not_mark_ = 0;
  std::unique_ptr<JsonTexts> tagged_;
  Expr close_tag_ = 0;
  Expr any_character_ = 0, plain_character_ = 0, blank_ = 0;
  Expr string_ = 0, number_ = 0, integer_ = 0, boolean_ = 0, null_ = 0;
  Expr value_ = 0, object_ = 0, array_ = 0, arguments_ = 0;
};

/// A scalar as JSON writes it. pre: null, a boolean, a number or a string.
std::string scalar_text(const jinja::Value& value);

}  // namespace sharpi::grammar
