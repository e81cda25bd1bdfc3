// SPDX-License-Identifier: MIT
// Numbers between bounds, as decimal digits.
// Thread rule: pure functions over the given expressions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "text/grammar/expressions.h"

namespace sharpi::grammar {

/// Digits before the point of a number without bounds, and behind it.
inline constexpr uint32_t kMaxJsonDigits = 15;

/// A number as JSON wrote it, without an exponent.
struct Decimal {
  bool negative = false;
  std::string whole;     // no zeros in front; empty: 0
  std::string fraction;  // no zeros behind
  bool is_zero() const { return whole.empty() && fraction.empty(); }
  bool is_integer() const { return fraction.empty(); }
};
/// False: not a number, or one of more than a few hundred digits.
bool read_decimal(std::string_view text, Decimal* out);
/// a < b: negative; a = b: 0.
int compare(const Decimal& a, const Decimal& b);
/// Whether `divisor`, which is whole, divides a number.
bool divides(uint32_t divisor, const Decimal& number);

struct NumberRange {
  struct Bound {
    Decimal value;
    bool open = false;  // the bound itself is outside
  };
  std::optional<Bound> low, high;
  bool integer = false;
  uint32_t divisor = 1;  // of integers
  uint32_t max_fraction = kMaxJsonDigits;
  bool is_free() const { return !low && !high && divisor == 1 && max_fraction == kMaxJsonDigits; }
  void at_least(const Bound& bound);
  void at_most(const Bound& bound);
  bool contains(const Decimal& number) const;
};

Expr any_integer(Expressions& e);
/// Numbers that are written in one way only: without exponents, and without zeros behind.
Expr unique_numbers(Expressions& e);
/// Its numbers without exponents, and never -0.
Expr numbers_in(Expressions& e, const NumberRange& range);

}  // namespace sharpi::grammar
