// SPDX-License-Identifier: MIT
// The filters of Jinja that templates use, with Jinja's parameters.
// Thread rule: pure functions.
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace sharpi::jinja {

enum class Filter : uint8_t {
  kUnknown,
  // Values (filters.cc).
  kAbs,
  kAttr,
  kCount,
  kDefault,
  kFirst,
  kFloat,
  kInt,
  kLast,
  kRound,
  kTojson,
  // Strings (filters_text.cc).
  kCapitalize,
  kEscape,
  kFormat,
  kIndent,
  kJoin,
  kLower,
  kReplace,
  kSafe,
  kString,
  kTitle,
  kTrim,
  kUpper,
  // Lists (filters_list.cc).
  kBatch,
  kDictsort,
  kItems,
  kList,
  kMap,
  kMax,
  kMin,
  kReject,
  kRejectattr,
  kReverse,
  kSelect,
  kSelectattr,
  kSort,
  kSum,
  kUnique,
};

Filter find_filter(std::string_view name);
/// kUnsupported names a filter that is unknown. `depth`: of filters that apply filters.
Status apply_filter(Filter filter, std::string_view name, const Value& value,
                    const Arguments& arguments, Heap* heap, Value* out, int depth = 0);

// The parts.
Status text_filter(Filter filter, const Value& value, const Arguments& arguments, Heap* heap,
                   Value* out);
Status list_filter(Filter filter, const Value& value, const Arguments& arguments, Heap* heap,
                   Value* out, int depth);

/// The value itself if it is a string, else what it prints.
Status as_text(const Value& value, Heap* heap, Value* out);
/// What `attribute="a.b.0"` takes of a value: items, one after the other.
Status attribute_of(const Value& value, const Value& path, Heap* heap, Value* out);

}  // namespace sharpi::jinja
