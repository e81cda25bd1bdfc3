// SPDX-License-Identifier: MIT
// Numbers and times as the C locale has them: the program that uses the library may have called
// setlocale(), and what a template gives must not depend on that.
// Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>

namespace sharpi::os {

/// strtod() with a decimal point.
double real_of_digits(const char* text, char** end = nullptr);

/// strftime() with English names.
size_t english_time(char* out, size_t size, const char* format, const std::tm& time);

/// The host's local time, seconds since 1970; false where it cannot be told.
bool local_time(int64_t seconds, std::tm* out);

}  // namespace sharpi::os
