// SPDX-License-Identifier: MIT
// Numbers and times as the C locale has them: the program that uses the library may have called
// setlocale(), and what a template gives must not depend on that.
// Thread rule: any thread.
#pragma once

#include <locale.h>  // newlocale(), which <clocale> need not have

#include <cstdlib>
#include <ctime>

namespace sharpi {

/// Made once and never freed. The C libraries that have it keep this locale as a constant of their
/// own, so that it costs nothing and cannot fail.
inline locale_t c_locale() {
  static const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
  return locale;
}

/// strtod() with a decimal point.
inline double real_of_digits(const char* text, char** end = nullptr) {
  return strtod_l(text, end, c_locale());
}

/// strftime() with English names.
inline size_t english_time(char* out, size_t size, const char* format, const std::tm& time) {
  return strftime_l(out, size, format, &time, c_locale());
}

}  // namespace sharpi
