// SPDX-License-Identifier: MIT
#include "text/jinja/numbers.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <string>

#include "os/c_locale.h"
#include "text/jinja/operators.h"

namespace sharpi::jinja {
namespace {

constexpr size_t kMaxDigits = 4300;  // that Python's int() reads

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

std::string_view without_blanks(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Takes "0x" and its like off the text where the base has it; a base of 0 becomes the one told.
void take_prefix(std::string_view* text, int64_t* base) {
  const char letter =
      text->size() > 1 && text->front() == '0' ? static_cast<char>((*text)[1] | 0x20) : '\0';
  const int64_t told = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (told == 0 || (*base != 0 && *base != told)) {
    // Without a prefix a number that begins with 0 is 0.
    const bool octal =
        *base == 0 && text->starts_with('0') && text->find_first_not_of("0_") != text->npos;
    *base = octal ? -1 : *base == 0 ? 10 : *base;
    return;
  }
  *base = told;
  text->remove_prefix(2);
  if (text->starts_with('_')) text->remove_prefix(1);
}

/// The digits without the underscores that may stand between two of them; empty: others stand
/// there.
std::string plain_digits(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_')
      out.push_back(text[i]);
    else if (i == 0 || i + 1 == text.size() || text[i - 1] == '_')
      return {};
  }
  return out;
}

}  // namespace

Status integer_of_text(std::string_view text, int64_t base, Heap* heap, Value* out, bool* found) {
  *found = false;
  text = without_blanks(text);
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  take_prefix(&text, &base);
  std::string digits = plain_digits(text);
  if (base < 2 || base > 36 || digits.empty() || digits.front() == '-') return Status::ok();
  if (minus) digits.insert(digits.begin(), '-');
  int64_t integer = 0;
  const char* end = digits.data() + digits.size();
  const auto read = std::from_chars(digits.data(), end, integer, static_cast<int>(base));
  if (read.ptr != end || read.ec == std::errc::invalid_argument) return Status::ok();
  *found = true;
  if (read.ec == std::errc()) {
    *out = Value::of(integer);
    return Status::ok();
  }
  if (base != 10) return too_large();
  *found = digits.size() <= kMaxDigits + (minus ? 1 : 0);
  if (!*found) return Status::ok();
  const size_t sign = minus ? 1 : 0;
  digits.erase(sign, digits.find_first_not_of('0', sign) - sign);
  SHARPI_TRY(heap->charge(digits.size()));
  *out = Value::numeral(heap->text(digits, true));
  return Status::ok();
}

bool real_of_text(std::string_view text, double* out) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain.push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || !is_digit(text[i - 1]) || !is_digit(text[i + 1])) {
      return false;
    }
  }
  // What strtod() reads besides: hexadecimal numbers, and texts behind "nan".
  if (plain.find_first_of("xXpP(") != plain.npos) return false;
  char* end = nullptr;
  *out = os::real_of_digits(plain.c_str(), &end);
  const std::string_view rest(end, static_cast<size_t>(plain.c_str() + plain.size() - end));
  return end != plain.c_str() && without_blanks(rest).empty();
}

Status integer_of_real(double real, Heap* heap, Value* out) {
  if (!std::isfinite(real)) {
    return Status::error(Code::kInvalidArgument, "cannot convert float %s to integer",
                         std::isnan(real) ? "NaN" : "infinity");
  }
  if (real >= -0x1p63 && real < 0x1p63) {
    *out = Value::of(static_cast<int64_t>(real));
    return Status::ok();
  }
  char digits[400];
  std::snprintf(digits, sizeof digits, "%.0f", real);  // exact: a double this large is whole
  SHARPI_TRY(heap->charge(sizeof digits));
  *out = Value::numeral(heap->text(digits, true));
  return Status::ok();
}

Status round_integer(int64_t value, int64_t precision, Value* out) {
  *out = Value::of(precision >= 0 ? value : int64_t{0});
  if (precision >= 0 || precision < -19) return Status::ok();
  __extension__ using Wide = __int128;
  Wide scale = 1;
  for (int64_t i = 0; i > precision; --i) scale *= 10;
  Wide quotient = value / scale;
  const Wide rest = value % scale, twice = rest < 0 ? -2 * rest : 2 * rest;
  if (twice > scale || (twice == scale && quotient % 2 != 0)) quotient += value < 0 ? -1 : 1;
  const Wide result = quotient * scale;
  if (result > INT64_MAX || result < INT64_MIN) return too_large();
  *out = Value::of(static_cast<int64_t>(result));
  return Status::ok();
}

}  // namespace sharpi::jinja
