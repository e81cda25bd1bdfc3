// SPDX-License-Identifier: MIT
#include "text/jinja/tests.h"

#include <algorithm>
#include <iterator>

#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace sharpi::jinja {
namespace {

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"defined", Test::kDefined},
    {"undefined", Test::kUndefined},
    {"none", Test::kNone},
    {"boolean", Test::kBoolean},
    {"true", Test::kTrue},
    {"false", Test::kFalse},
    {"integer", Test::kInteger},
    {"float", Test::kFloat},
    {"number", Test::kNumber},
    {"string", Test::kString},
    {"mapping", Test::kMapping},
    {"iterable", Test::kIterable},
    {"sequence", Test::kSequence},
    {"callable", Test::kCallable},
    {"sameas", Test::kSameas},
    {"in", Test::kIn},
    {"eq", Test::kEq},
    {"equalto", Test::kEq},
    {"==", Test::kEq},
    {"ne", Test::kNe},
    {"!=", Test::kNe},
    {"lt", Test::kLt},
    {"lessthan", Test::kLt},
    {"<", Test::kLt},
    {"le", Test::kLe},
    {"<=", Test::kLe},
    {"gt", Test::kGt},
    {"greaterthan", Test::kGt},
    {">", Test::kGt},
    {"ge", Test::kGe},
    {">=", Test::kGe},
    {"odd", Test::kOdd},
    {"even", Test::kEven},
    {"divisibleby", Test::kDivisibleby},
    {"lower", Test::kLower},
    {"upper", Test::kUpper},
};

/// Tests that take an argument.
bool compares(Test test) {
  return (test >= Test::kSameas && test <= Test::kGe) || test == Test::kDivisibleby;
}

Status divides(const Value& value, int64_t divisor, bool* out) {
  if (divisor == 0) return Status::error(Code::kInvalidArgument, "division by zero");
  if (value.is(Kind::kNumeral)) return too_large();
  if (!value.is(Kind::kInt) && !value.is(Kind::kBool)) {
    return Status::error(Code::kInvalidArgument, "a test of divisibility wants an integer, not %s",
                         type_name(value));
  }
  const int64_t n = value.is(Kind::kInt) ? value.integer : value.boolean;
  *out = divisor == -1 || n % divisor == 0;
  return Status::ok();
}

Status compare_test(Test test, const Value& a, const Value& b, Heap* heap, bool* out) {
  switch (test) {
    case Test::kSameas:
      *out = false;
      if (a.kind != b.kind) return Status::ok();
      if (!a.is_string() && !a.is_listed() && !a.is(Kind::kDict)) return equal(a, b, heap, out);
      *out = a.list == b.list;
      return Status::ok();
    case Test::kIn:
      return compare(Op::kIn, a, b, heap, out);
    case Test::kEq:
      return compare(Op::kEq, a, b, heap, out);
    case Test::kNe:
      return compare(Op::kNe, a, b, heap, out);
    case Test::kLt:
      return compare(Op::kLt, a, b, heap, out);
    case Test::kLe:
      return compare(Op::kLe, a, b, heap, out);
    case Test::kGt:
      return compare(Op::kGt, a, b, heap, out);
    case Test::kGe:
      return compare(Op::kGe, a, b, heap, out);
    default:
      break;
  }
  if (!b.is(Kind::kInt)) {
    return Status::error(Code::kInvalidArgument, "a divisor is an integer, not %s", type_name(b));
  }
  return divides(a, b.integer, out);
}

Status case_test(Test test, const Value& value, Heap* heap, bool* out) {
  MarkedText text;
  SHARPI_TRY(print(value, heap, &text));
  Value answer;
  const Value string = heap->text(std::move(text));
  const Method method = test == Test::kLower ? Method::kIslower : Method::kIsupper;
  SHARPI_TRY(call_method(string, method, "islower", {}, heap, &answer));
  *out = answer.boolean;
  return Status::ok();
}

bool is_of_kind(Test test, const Value& v) {
  switch (test) {
    case Test::kDefined:
      return !v.is(Kind::kUndefined);
    case Test::kUndefined:
      return v.is(Kind::kUndefined);
    case Test::kNone:
      return v.is(Kind::kNone);
    case Test::kBoolean:
      return v.is(Kind::kBool);
    case Test::kTrue:
      return v.is(Kind::kBool) && v.boolean;
    case Test::kFalse:
      return v.is(Kind::kBool) && !v.boolean;
    case Test::kInteger:
      return v.is(Kind::kInt) || v.is(Kind::kNumeral);
    case Test::kFloat:
      return v.is(Kind::kFloat);
    case Test::kNumber:
      return v.is_number() || v.is(Kind::kNumeral);
    case Test::kString:
      return v.is_string();
    case Test::kMapping:
      return v.is(Kind::kDict);
    case Test::kIterable:
      return v.is_string() || v.is_listed() || v.is(Kind::kDict) || v.is(Kind::kUndefined) ||
             v.is(Kind::kLoop);
    case Test::kSequence:
      return v.is_string() || v.is(Kind::kList) || v.is(Kind::kTuple) || v.is(Kind::kRange) ||
             v.is(Kind::kDict) || v.is(Kind::kUndefined);
    default:
      return v.is(Kind::kMacro) || v.is(Kind::kFunction) || v.is(Kind::kMethod) ||
             v.is(Kind::kLoop) || v.is(Kind::kUndefined);
  }
}

}  // namespace

Test find_test(std::string_view name) {
  const auto* it = std::find_if(std::begin(kTests), std::end(kTests),
                                [&](const auto& t) { return t.first == name; });
  return it == std::end(kTests) ? Test::kUnknown : it->second;
}

Status apply_test(Test test, std::string_view name, const Value& value, const Arguments& arguments,
                  Heap* heap, bool* out) {
  if (test == Test::kUnknown) {
    return Status::error(Code::kUnsupported, "the test \"%.*s\" is not supported",
                         static_cast<int>(std::min<size_t>(name.size(), 64)), name.data());
  }
  const size_t wants = compares(test) ? 1 : 0;
  if (arguments.size() != wants) {
    return Status::error(Code::kInvalidArgument, "the test \"%.*s\" takes %zu arguments",
                         static_cast<int>(name.size()), name.data(), wants);
  }
  if (wants == 1) {
    const Value& operand =
        arguments.positional.empty() ? arguments.keywords[0].value : arguments.positional[0];
    return compare_test(test, value, operand, heap, out);
  }
  if (test == Test::kOdd || test == Test::kEven) {
    SHARPI_TRY(divides(value, 2, out));
    *out = *out == (test == Test::kEven);
    return Status::ok();
  }
  if (test == Test::kLower || test == Test::kUpper) return case_test(test, value, heap, out);
  *out = is_of_kind(test, value);
  return Status::ok();
}

}  // namespace sharpi::jinja
