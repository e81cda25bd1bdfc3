// SPDX-License-Identifier: MIT
// Numbers out of texts and out of other numbers, as Python's int(), float() and round() make them.
// Thread rule: pure functions.
#pragma once

#include <string_view>

#include "text/jinja/value.h"

namespace sharpi::jinja {

/// int(text, base), a base of 0 being told by the prefix. *found: whether the text is one; if not,
/// *out stays.
Status integer_of_text(std::string_view text, int64_t base, Heap* heap, Value* out, bool* found);
/// float(text). False: the text is none.
bool real_of_text(std::string_view text, double* out);
/// int(real). kInvalidArgument for infinities and for what is no number.
Status integer_of_real(double real, Heap* heap, Value* out);
/// round(value, precision) of an integer: halves go to the even one.
Status round_integer(int64_t value, int64_t precision, Value* out);

}  // namespace sharpi::jinja
