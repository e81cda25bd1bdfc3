// SPDX-License-Identifier: MIT
#include "os/c_locale.h"

#include <locale.h>  // newlocale(), which <clocale> need not have
#if __has_include(<xlocale.h>)
#include <xlocale.h>  // functions of a locale, where <locale.h> has none
#endif

#include <cstdlib>

namespace sharpi::os {
namespace {

/// Made once and never freed. The C libraries that have it keep this locale as a constant of their
/// own, so that it costs nothing and cannot fail.
locale_t c_locale() {
  static const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
  return locale;
}

}  // namespace

double real_of_digits(const char* text, char** end) {
  return strtod_l(text, end, c_locale());
}

size_t english_time(char* out, size_t size, const char* format, const std::tm& time) {
  return strftime_l(out, size, format, &time, c_locale());
}

bool local_time(int64_t seconds, std::tm* out) {
  const auto t = static_cast<std::time_t>(seconds);
  return localtime_r(&t, out) != nullptr;
}

}  // namespace sharpi::os
