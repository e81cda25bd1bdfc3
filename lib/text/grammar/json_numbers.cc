// SPDX-License-Identifier: MIT
#include "text/grammar/json_numbers.h"

#include <algorithm>
#include <charconv>

namespace sharpi::grammar {
namespace {

constexpr int kMaxExponent = 400;

Expr digit_range(Expressions& e, char first, char last) {
  ByteSet bytes;
  for (char c = first; c <= last; ++c) bytes.set(static_cast<unsigned char>(c));
  return e.set(bytes);
}

// Numbers that are not negative, by their digits.
class Magnitudes {
 public:
  Magnitudes(Expressions& e, uint32_t max_fraction)
      : e_(e),
        digit_(digit_range(e, '0', '9')),
        nonzero_(digit_range(e, '1', '9')),
        zeros_(e.any_number(e.byte('0'))),
        max_fraction_(max_fraction),
        any_fraction_(max_fraction == 0 ? Expressions::kEmpty
                                        : e.optional(e.sequence(
                                              e.byte('.'), e.repeat(digit_, 1, max_fraction)))) {}

  Expr all(size_t n_digits) {
    return e_.sequence(e_.either({e_.byte('0'), longer_than(0, n_digits)}), any_fraction_);
  }
  Expr at_least(const NumberRange::Bound& bound);
  Expr at_most(const NumberRange::Bound& bound);

 private:
  static std::string whole_of(const Decimal& value) {
    return value.whole.empty() ? "0" : value.whole;
  }
  // Whole numbers of more than n digits, without a zero in front.
  Expr longer_than(size_t n, size_t most) {
    if (most <= n) return Expressions::kNothing;
    return e_.sequence(
        nonzero_, e_.repeat(digit_, static_cast<uint32_t>(n), static_cast<uint32_t>(most - 1)));
  }
  Expr digits(size_t n) {
    return e_.repeat(digit_, static_cast<uint32_t>(n), static_cast<uint32_t>(n));
  }
  Expr any_digits() { return e_.repeat(digit_, 0, max_fraction_); }
  Expr fraction_at_least(const std::string& bound, bool open);
  Expr fraction_at_most(const std::string& bound, bool open);

  Expressions& e_;
  const Expr digit_, nonzero_, zeros_;
  const uint32_t max_fraction_;
  const Expr any_fraction_;
};

Expr Magnitudes::fraction_at_least(const std::string& bound, bool open) {
  const Expr above_zero = e_.sequence({zeros_, nonzero_, any_digits()});
  std::vector<Expr> choices;
  for (size_t i = 0; i < bound.size(); ++i) {
    if (bound[i] == '9') continue;
    choices.push_back(
        e_.sequence({e_.bytes(bound.substr(0, i)),
                     digit_range(e_, static_cast<char>(bound[i] + 1), '9'), any_digits()}));
  }
  choices.push_back(e_.sequence(e_.bytes(bound), open ? above_zero : any_digits()));
  const Expr some = e_.sequence(e_.byte('.'), e_.either(std::move(choices)));
  return bound.empty() && !open ? any_fraction_ : e_.both(some, any_fraction_);
}

Expr Magnitudes::fraction_at_most(const std::string& bound, bool open) {
  std::vector<Expr> choices;
  for (size_t i = 0; i < bound.size(); ++i) {
    if (bound[i] != '0') {
      choices.push_back(
          e_.sequence({e_.bytes(bound.substr(0, i)),
                       digit_range(e_, '0', static_cast<char>(bound[i] - 1)), any_digits()}));
    }
    if (i > 0) choices.push_back(e_.bytes(bound.substr(0, i)));
  }
  if (!open) choices.push_back(e_.sequence(e_.bytes(bound), zeros_));
  const Expr some = e_.sequence(e_.byte('.'), e_.either(std::move(choices)));
  const bool none_fits = !open || !bound.empty();
  return e_.both(e_.either({none_fits ? Expressions::kEmpty : Expressions::kNothing, some}),
                 any_fraction_);
}

Expr Magnitudes::at_least(const NumberRange::Bound& bound) {
  const std::string whole = whole_of(bound.value);
  const size_t n = whole.size();
  std::vector<Expr> above{longer_than(n, std::max<size_t>(kMaxJsonDigits, n))};
  for (size_t i = 0; i < n; ++i) {
    if (whole[i] == '9') continue;
    above.push_back(
        e_.sequence({e_.bytes(whole.substr(0, i)),
                     digit_range(e_, static_cast<char>(whole[i] + 1), '9'), digits(n - i - 1)}));
  }
  return e_.either(
      {e_.sequence(e_.either(std::move(above)), any_fraction_),
       e_.sequence(e_.bytes(whole), fraction_at_least(bound.value.fraction, bound.open))});
}

Expr Magnitudes::at_most(const NumberRange::Bound& bound) {
  const std::string whole = whole_of(bound.value);
  const size_t n = whole.size();
  std::vector<Expr> below;
  if (n > 1) below.push_back(e_.either({e_.byte('0'), longer_than(0, n - 1)}));
  for (size_t i = 0; i < n; ++i) {
    const char least = i == 0 && n > 1 ? '1' : '0';
    if (whole[i] <= least) continue;
    below.push_back(
        e_.sequence({e_.bytes(whole.substr(0, i)),
                     digit_range(e_, least, static_cast<char>(whole[i] - 1)), digits(n - i - 1)}));
  }
  return e_.either(
      {e_.sequence(e_.either(std::move(below)), any_fraction_),
       e_.sequence(e_.bytes(whole), fraction_at_most(bound.value.fraction, bound.open))});
}

}  // namespace

bool read_decimal(std::string_view text, Decimal* out) {
  *out = {};
  size_t at = 0;
  if (text.starts_with('-')) at = 1;
  std::string digits;
  int point = -1;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      point = static_cast<int>(digits.size());
    } else if (text[at] >= '0' && text[at] <= '9') {
      digits += text[at];
    } else {
      return false;
    }
  }
  int exponent = 0;
  if (at < text.size()) {
    const size_t begin = at + (text.substr(at + 1).starts_with('+') ? 2 : 1);
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data() + begin, end, exponent);
    if (read.ec != std::errc() || read.ptr != end) return false;
  }
  if (digits.empty() || digits.size() > kMaxExponent) return false;
  if (exponent > kMaxExponent || exponent < -kMaxExponent) return false;
  int places = (point < 0 ? static_cast<int>(digits.size()) : point) + exponent;
  if (places < 0) {
    digits.insert(0, static_cast<size_t>(-places), '0');
    places = 0;
  }
  if (digits.size() < static_cast<size_t>(places)) digits.resize(static_cast<size_t>(places), '0');
  out->whole = digits.substr(0, static_cast<size_t>(places));
  out->fraction = digits.substr(static_cast<size_t>(places));
  out->whole.erase(0, std::min(out->whole.find_first_not_of('0'), out->whole.size()));
  out->fraction.erase(out->fraction.find_last_not_of('0') + 1);
  out->negative = text.starts_with('-') && !out->is_zero();
  return true;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  int order = 0;
  if (a.whole.size() != b.whole.size()) {
    order = a.whole.size() < b.whole.size() ? -1 : 1;
  } else {
    order = a.whole.compare(b.whole);
    if (order == 0) order = a.fraction.compare(b.fraction);
  }
  return a.negative ? -order : order;
}

bool divides(uint32_t divisor, const Decimal& number) {
  if (!number.is_integer()) return false;
  uint64_t rest = 0;
  for (const char c : number.whole) rest = (rest * 10 + static_cast<uint64_t>(c - '0')) % divisor;
  return rest == 0;
}

void NumberRange::at_least(const Bound& bound) {
  const int order = low ? compare(bound.value, low->value) : 1;
  if (order > 0 || (order == 0 && bound.open)) low = bound;
}

void NumberRange::at_most(const Bound& bound) {
  const int order = high ? compare(bound.value, high->value) : -1;
  if (order < 0 || (order == 0 && bound.open)) high = bound;
}

bool NumberRange::contains(const Decimal& number) const {
  const int above = low ? compare(number, low->value) : 1;
  const int below = high ? compare(number, high->value) : -1;
  if (above < 0 || (above == 0 && low->open) || below > 0 || (below == 0 && high->open))
    return false;
  if (integer && !number.is_integer()) return false;
  return (divisor == 1 || divides(divisor, number)) && number.fraction.size() <= max_fraction;
}

Expr any_integer(Expressions& e) {
  const Expr above_zero = e.sequence(digit_range(e, '1', '9'),
                                     e.repeat(digit_range(e, '0', '9'), 0, kMaxJsonDigits - 1));
  return e.either({e.byte('0'), e.sequence(e.optional(e.byte('-')), above_zero)});
}

Expr unique_numbers(Expressions& e) {
  const Expr digit = digit_range(e, '0', '9'), above_zero = digit_range(e, '1', '9');
  // Together no more than a double tells apart: otherwise a fraction may be read as a whole number.
  constexpr uint32_t kBefore = kMaxJsonDigits / 2, kBehind = kMaxJsonDigits - kBefore;
  const Expr fraction = e.sequence({e.byte('.'), e.repeat(digit, 0, kBehind - 1), above_zero});
  const Expr whole =
      e.either({e.byte('0'), e.sequence(above_zero, e.repeat(digit, 0, kBefore - 1))});
  return e.either({any_integer(e), e.sequence({e.optional(e.byte('-')), whole, fraction})});
}

Expr numbers_in(Expressions& e, const NumberRange& range) {
  Magnitudes magnitudes(e, range.integer ? 0 : range.max_fraction);
  size_t n_digits = kMaxJsonDigits;
  for (const auto& bound : {range.low, range.high}) {
    if (bound) n_digits = std::max(n_digits, bound->value.whole.size());
  }
  const auto turned = [](NumberRange::Bound bound) {
    bound.value.negative = !bound.value.negative;
    return bound;
  };
  std::vector<Expr> positive{magnitudes.all(n_digits)}, negative = positive;
  const bool has_multiples = range.divisor > 1;
  if (has_multiples) positive.push_back(e.multiples(range.divisor, 0));
  if (has_multiples) negative.push_back(e.multiples(range.divisor, 0));
  negative.push_back(magnitudes.at_least({{}, true}));
  if (range.low) {
    const bool below_zero = range.low->value.negative;
    if (!below_zero) positive.push_back(magnitudes.at_least(*range.low));
    negative.push_back(below_zero ? magnitudes.at_most(turned(*range.low)) : Expressions::kNothing);
  }
  if (range.high) {
    const bool below_zero = range.high->value.negative;
    positive.push_back(below_zero ? Expressions::kNothing : magnitudes.at_most(*range.high));
    if (below_zero) negative.push_back(magnitudes.at_least(turned(*range.high)));
  }
  return e.terminal(e.either(
      {e.both(std::move(positive)), e.sequence(e.byte('-'), e.both(std::move(negative)))}));
}

}  // namespace sharpi::grammar
