// SPDX-License-Identifier: MIT
// The tests of Jinja ("x is defined").
// Thread rule: pure functions.
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace sharpi::jinja {

enum class Test : uint8_t {
  kUnknown,
  kDefined,
  kUndefined,
  kNone,
  kBoolean,
  kTrue,
  kFalse,
  kInteger,
  kFloat,
  kNumber,
  kString,
  kMapping,
  kIterable,
  kSequence,
  kCallable,
  kSameas,
  kIn,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kOdd,
  kEven,
  kDivisibleby,
  kLower,
  kUpper,
};

Test find_test(std::string_view name);
/// kUnsupported names a test that is unknown.
Status apply_test(Test test, std::string_view name, const Value& value, const Arguments& arguments,
                  Heap* heap, bool* out);

}  // namespace sharpi::jinja
