// SPDX-License-Identifier: MIT
// The parts of JSON texts as expressions. Blanks are bounded, and so are the digits of numbers.
// Thread rule: one thread an object.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/grammar/expressions.h"
#include "text/grammar/pattern.h"
#include "text/jinja/value.h"

namespace sharpi::grammar {

class JsonTexts {
 public:
  /// The first thing that is made in `expressions`, so that it is the same in all of them.
  explicit JsonTexts(Expressions& expressions);
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
  Expr pair(Expr key, Expr value);
  Expr braced(Expr members);
  Expr bracketed(Expr items);
  Expr key(std::string_view name);
  /// A value as it is; blanks where they may be.
  Expr literal(const jinja::Value& value);
  /// Where patterns of strings are looked for.
  PatternText pattern_text() const;

  static std::string quoted(std::string_view text);

 private:
  void make_strings();
  void make_numbers();
  void make_values();

  Expressions& e_;
  Expr any_character_ = 0, plain_character_ = 0, blank_ = 0;
  Expr string_ = 0, number_ = 0, integer_ = 0, boolean_ = 0, null_ = 0;
  Expr value_ = 0, object_ = 0, array_ = 0;
};

/// A scalar as JSON writes it. pre: null, a boolean, a number or a string.
std::string scalar_text(const jinja::Value& value);

}  // namespace sharpi::grammar
