// SPDX-License-Identifier: MIT
// The run-time library that every system has knows strtod() of a locale, but not strftime() of one,
// and no number by its name.
#include "os/c_locale.h"

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include <cstdio>
#include <limits>
#include <string>
#include <utility>

namespace sharpi::os {
namespace {

constexpr const char* kDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                 "Thursday", "Friday", "Saturday"};
constexpr const char* kMonths[] = {"January",   "February", "March",    "April",
                                   "May",       "June",     "July",     "August",
                                   "September", "October",  "November", "December"};

std::string number(int value, int width, char fill = '0') {
  std::string digits = std::to_string(value < 0 ? -value : value);
  if (digits.size() < static_cast<size_t>(width))
    digits.insert(0, static_cast<size_t>(width) - digits.size(), fill);
  return value < 0 ? "-" + digits : digits;
}

/// ISO 8601: the year that the week of a day belongs to, and the week's number.
void iso_week(const std::tm& t, int* year, int* week) {
  const int day = (t.tm_wday + 6) % 7;  // since Monday
  const auto days_of = [](int y) {
    return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0 ? 366 : 365;
  };
  *year = t.tm_year + 1900;
  int n = (t.tm_yday - day + 10) / 7;
  if (n < 1) {
    --*year;
    n = (t.tm_yday + days_of(*year) - day + 10) / 7;
  } else if (n == 53 && t.tm_yday - day + 3 >= days_of(*year)) {
    ++*year;
    n = 1;
  }
  *week = n;
}

std::string format_time(const char* format, const std::tm& t);

/// Years and weeks.
std::string convert_year(char c, const std::tm& t) {
  const int year = t.tm_year + 1900;
  int iso_year = 0, week = 0;
  iso_week(t, &iso_year, &week);
  if (c == 'C') return number(year / 100, 2);
  if (c == 'g') return number(iso_year % 100, 2);
  if (c == 'G') return number(iso_year, 4);
  if (c == 'u') return number(t.tm_wday == 0 ? 7 : t.tm_wday, 1);
  if (c == 'U') return number((t.tm_yday + 7 - t.tm_wday) / 7, 2);
  if (c == 'V') return number(week, 2);
  if (c == 'w') return number(t.tm_wday, 1);
  if (c == 'W') return number((t.tm_yday + 7 - (t.tm_wday + 6) % 7) / 7, 2);
  if (c == 'y') return number(year % 100, 2);
  return c == 'Y' ? number(year, 1) : "";
}

/// Months and days.
std::string convert_day(char c, const std::tm& t) {
  if (c == 'a') return std::string(kDays[(t.tm_wday + 7) % 7], 3);
  if (c == 'A') return kDays[(t.tm_wday + 7) % 7];
  if (c == 'b' || c == 'h') return std::string(kMonths[(t.tm_mon + 12) % 12], 3);
  if (c == 'B') return kMonths[(t.tm_mon + 12) % 12];
  if (c == 'd') return number(t.tm_mday, 2);
  if (c == 'D' || c == 'x') return format_time("%m/%d/%y", t);
  if (c == 'e') return number(t.tm_mday, 2, ' ');
  if (c == 'F') return format_time("%Y-%m-%d", t);
  if (c == 'j') return number(t.tm_yday + 1, 3);
  return c == 'm' ? number(t.tm_mon + 1, 2) : convert_year(c, t);
}

/// One conversion of C99 as the C locale has it, or nothing for what is none.
std::string convert(char c, const std::tm& t) {
  if (c == '%') return "%";
  if (c == 'n') return "\n";
  if (c == 't') return "\t";
  if (c == 'c') return format_time("%a %b %e %H:%M:%S %Y", t);
  if (c == 'H') return number(t.tm_hour, 2);
  if (c == 'I') return number(t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12, 2);
  if (c == 'M') return number(t.tm_min, 2);
  if (c == 'p') return t.tm_hour < 12 ? "AM" : "PM";
  if (c == 'r') return format_time("%I:%M:%S %p", t);
  if (c == 'R') return format_time("%H:%M", t);
  if (c == 'S') return number(t.tm_sec, 2);
  if (c == 'T' || c == 'X') return format_time("%H:%M:%S", t);
  if (c != 'z' && c != 'Z') return convert_day(c, t);
  char text[128];  // digits, or the zone's own name
  const char zone[] = {'%', c, '\0'};
  return std::string(text, std::strftime(text, sizeof text, zone, &t));
}

std::string format_time(const char* format, const std::tm& t) {
  std::string out;
  for (const char* p = format; *p != '\0'; ++p) {
    if (*p != '%' || p[1] == '\0') {
      out += *p;
      continue;
    }
    ++p;
    if ((*p == 'E' || *p == 'O') && p[1] != '\0') ++p;  // of other calendars and digits: C has none
    out += convert(*p, t);
  }
  return out;
}

/// Infinity and NaN as C reads them, in any case, with a sign; false for other texts.
bool named_real(const char* text, double* out, char** end) {
  const char* p = text + strspn(text, " \t\n\v\f\r");
  const bool minus = *p == '-';
  if (*p == '-' || *p == '+') ++p;
  using Limits = std::numeric_limits<double>;
  const std::pair<const char*, double> names[] = {
      {"infinity", Limits::infinity()}, {"inf", Limits::infinity()}, {"nan", Limits::quiet_NaN()}};
  for (const auto& [name, value] : names) {
    if (_strnicmp(p, name, strlen(name)) != 0) continue;
    *out = minus ? -value : value;
    if (end != nullptr) *end = const_cast<char*>(p + strlen(name));
    return true;
  }
  return false;
}

}  // namespace

double real_of_digits(const char* text, char** end) {
  double named = 0;
  if (named_real(text, &named, end)) return named;
  static const _locale_t locale = _create_locale(LC_ALL, "C");
  return _strtod_l(text, end, locale);
}

size_t english_time(char* out, size_t size, const char* format, const std::tm& time) {
  const std::string text = format_time(format, time);
  if (text.size() + 1 > size) return 0;
  text.copy(out, text.size());
  out[text.size()] = '\0';
  return text.size();
}

bool local_time(int64_t seconds, std::tm* out) {
  const auto t = static_cast<std::time_t>(seconds);
  return localtime_s(out, &t) == 0;
}

}  // namespace sharpi::os
