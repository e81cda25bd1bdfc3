// SPDX-License-Identifier: MIT
#include "text/jinja/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "os/c_locale.h"
#include "text/jinja/json.h"
#include "text/jinja/numbers.h"
#include "text/jinja/operators.h"

namespace sharpi::jinja {
namespace {

constexpr int kMaxFilterDepth = 8;
constexpr int64_t kMaxIndent = 64;  // bytes of what tojson indents and separates by

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"abs", Filter::kAbs},           {"attr", Filter::kAttr},
    {"batch", Filter::kBatch},       {"capitalize", Filter::kCapitalize},
    {"count", Filter::kCount},       {"length", Filter::kCount},
    {"d", Filter::kDefault},         {"default", Filter::kDefault},
    {"dictsort", Filter::kDictsort}, {"e", Filter::kEscape},
    {"escape", Filter::kEscape},     {"first", Filter::kFirst},
    {"float", Filter::kFloat},       {"format", Filter::kFormat},
    {"indent", Filter::kIndent},     {"int", Filter::kInt},
    {"items", Filter::kItems},       {"join", Filter::kJoin},
    {"last", Filter::kLast},         {"list", Filter::kList},
    {"lower", Filter::kLower},       {"map", Filter::kMap},
    {"max", Filter::kMax},           {"min", Filter::kMin},
    {"reject", Filter::kReject},     {"rejectattr", Filter::kRejectattr},
    {"replace", Filter::kReplace},   {"reverse", Filter::kReverse},
    {"round", Filter::kRound},       {"safe", Filter::kSafe},
    {"select", Filter::kSelect},     {"selectattr", Filter::kSelectattr},
    {"sort", Filter::kSort},         {"string", Filter::kString},
    {"sum", Filter::kSum},           {"title", Filter::kTitle},
    {"tojson", Filter::kTojson},     {"trim", Filter::kTrim},
    {"unique", Filter::kUnique},     {"upper", Filter::kUpper},
};

Status default_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[2] = {heap->text("", false), Value::of(false)};
  SHARPI_TRY(bind(arguments, "default", {"default_value", "boolean"}, p));
  const bool replaces = value.is(Kind::kUndefined) || (truthy(p[1]) && !truthy(value));
  *out = replaces ? p[0] : value;
  return Status::ok();
}

Status first_or_last(Filter filter, const Value& value, Heap* heap, Value* out) {
  if (value.is(Kind::kGenerator) && filter == Filter::kFirst) {
    List& list = *value.list;
    if (list.next < list.items.size()) {
      *out = list.items[list.next++];
      return Status::ok();
    }
  } else if (value.is(Kind::kGenerator)) {
    return Status::error(Code::kInvalidArgument, "'generator' object is not reversible");
  } else if (value.is_string() && !value.text->empty()) {
    SHARPI_TRY(item_of(value, Value::of(int64_t{filter == Filter::kFirst ? 0 : -1}), heap, out));
    out->safe = false;
    return Status::ok();
  } else {
    std::vector<Value> items;
    SHARPI_TRY(walk(value, heap, &items));
    if (!items.empty()) {
      *out = filter == Filter::kFirst ? items.front() : items.back();
      return Status::ok();
    }
  }
  *out = heap->undefined("No first item, sequence was empty.");
  return Status::ok();
}

Status int_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[2] = {Value::of(int64_t{0}), Value::of(int64_t{10})};
  SHARPI_TRY(bind(arguments, "int", {"default", "base"}, p));
  if (value.is(Kind::kUndefined)) {
    return Status::error(Code::kInvalidArgument, "%s", value.undefined->what.c_str());
  }
  *out = value.is(Kind::kNumeral) ? value : p[0];
  double real = 0;
  bool found = false;
  if (value.is(Kind::kInt) || value.is(Kind::kBool)) {
    *out = Value::of(value.is(Kind::kInt) ? value.integer : int64_t{value.boolean});
    found = true;
  } else if (value.is_string()) {
    SHARPI_TRY(heap->work(value.text->size()));
    if (p[1].is(Kind::kInt)) {
      SHARPI_TRY(integer_of_text(value.bytes(), p[1].integer, heap, out, &found));
    }
    if (!found && (!real_of_text(value.bytes(), &real) || !std::isfinite(real)))
      return Status::ok();
  } else if (value.is(Kind::kFloat) && !std::isnan(value.real)) {
    real = value.real;
  } else {
    return Status::ok();
  }
  if (!found) SHARPI_TRY(integer_of_real(real, heap, out));
  out->foreign = is_foreign(value);
  return Status::ok();
}

Status float_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p = Value::of(0.0);
  SHARPI_TRY(bind(arguments, "float", {"default"}, &p));
  double real = 0;
  *out = p;
  if (value.is(Kind::kUndefined)) {
    return Status::error(Code::kInvalidArgument, "%s", value.undefined->what.c_str());
  }
  if (value.is_string()) SHARPI_TRY(heap->work(value.text->size()));
  if (value.is(Kind::kNumeral)) {
    *out = Value::of(os::real_of_digits(value.text->bytes().c_str()));
    if (std::isinf(out->real)) {
      return Status::error(Code::kInvalidArgument, "int too large to convert to float");
    }
  }
  if (value.is(Kind::kFloat)) *out = value;
  if (value.is(Kind::kInt)) *out = Value::of(static_cast<double>(value.integer));
  if (value.is(Kind::kBool)) *out = Value::of(value.boolean ? 1.0 : 0.0);
  const bool number = value.is_string() && real_of_text(value.bytes(), &real);
  if (number) *out = Value::of(real);
  if (number || !value.is_string()) out->foreign = is_foreign(value) || out->foreign;
  return Status::ok();
}

Status abs_filter(const Value& value, Value* out) {
  if (value.is(Kind::kFloat)) {
    *out = Value::of(std::abs(value.real));
  } else if (value.is(Kind::kBool)) {
    *out = Value::of(int64_t{value.boolean});
  } else if (value.is(Kind::kInt) && value.integer != INT64_MIN) {
    *out = Value::of(value.integer < 0 ? -value.integer : value.integer);
  } else if (value.is(Kind::kNumeral) || value.is(Kind::kInt)) {
    return too_large();
  } else {
    return Status::error(Code::kInvalidArgument, "bad operand type for abs(): '%s'",
                         type_name(value));
  }
  out->foreign = value.foreign;
  return Status::ok();
}

/// Python rounds the decimal digits of the number half to even; printing them does the same, in any
/// locale. pre: 0 <= precision <= 15.
double rounded(double x, int precision) {
  char digits[400];
  const auto end =
      std::to_chars(digits, digits + sizeof digits - 1, x, std::chars_format::fixed, precision);
  *end.ptr = '\0';
  return os::real_of_digits(digits);
}

/// 10 to the n, as near as a double comes; pow() is not as near on every system. pre: -15 <= n
/// <= 15.
double power_of_ten(int n) {
  constexpr double kPowers[] = {1e-15, 1e-14, 1e-13, 1e-12, 1e-11, 1e-10, 1e-9, 1e-8,
                                1e-7,  1e-6,  1e-5,  1e-4,  1e-3,  1e-2,  1e-1, 1e0,
                                1e1,   1e2,   1e3,   1e4,   1e5,   1e6,   1e7,  1e8,
                                1e9,   1e10,  1e11,  1e12,  1e13,  1e14,  1e15};
  return kPowers[n + 15];
}

Status round_filter(const Value& value, const Arguments& arguments, Value* out) {
  Value p[2] = {Value::of(int64_t{0}), {}};
  SHARPI_TRY(bind(arguments, "round", {"precision", "method"}, p));
  const std::string_view method = p[1].is_string() ? p[1].bytes() : std::string_view("common");
  const bool common = method == "common";
  if (!common && method != "ceil" && method != "floor") {
    return Status::error(Code::kInvalidArgument, "method must be common, ceil or floor");
  }
  const bool whole = value.is(Kind::kInt) || value.is(Kind::kBool);
  if (common && whole && p[0].is(Kind::kInt)) {
    SHARPI_TRY(
        round_integer(value.is(Kind::kInt) ? value.integer : value.boolean, p[0].integer, out));
    out->foreign = value.foreign || p[0].foreign;
    return Status::ok();
  }
  if (value.is(Kind::kNumeral)) return too_large();
  if (!value.is_number() || !p[0].is(Kind::kInt) || p[0].integer > 15 || p[0].integer < -15) {
    return Status::error(Code::kInvalidArgument, "round wants a number and a precision");
  }
  const double x = value.is(Kind::kFloat) ? value.real
                   : value.is(Kind::kInt) ? static_cast<double>(value.integer)
                                          : static_cast<double>(value.boolean);
  const double scale = power_of_ten(static_cast<int>(p[0].integer));
  double result = 0;
  if (method == "ceil") {
    result = std::ceil(x * scale) / scale;
  } else if (method == "floor") {
    result = std::floor(x * scale) / scale;
  } else {
    result = p[0].integer >= 0 ? rounded(x, static_cast<int>(p[0].integer))
                               : std::nearbyint(x * scale) / scale;
  }
  *out = Value::of(result);
  out->foreign = value.foreign || p[0].foreign;
  return Status::ok();
}

/// tojson's `indent`: so many spaces, or a text.
Status read_indent(const Value& given, JsonLayout* layout) {
  if (given.is(Kind::kNone)) return Status::ok();
  int64_t n = 0;
  if (given.is_string()) {
    n = static_cast<int64_t>(given.text->size());
    layout->indent = *given.text;
  } else if (given.is(Kind::kInt) || given.is(Kind::kBool)) {
    n = given.is(Kind::kInt) ? given.integer : given.boolean;
    const auto spaces = static_cast<size_t>(std::clamp<int64_t>(n, 0, kMaxIndent));
    layout->indent = MarkedText(std::string(spaces, ' '), given.foreign);
  } else {
    return Status::error(Code::kInvalidArgument, "tojson's indent is a number or a string");
  }
  if (n > kMaxIndent) {
    return Status::error(Code::kDoesNotFit, "tojson indents by %d at most",
                         static_cast<int>(kMaxIndent));
  }
  layout->indented = true;
  layout->item_separator = MarkedText(",", false);
  return Status::ok();
}

/// tojson's `separators`: two texts.
Status read_separators(const Value& given, JsonLayout* layout) {
  if (given.is(Kind::kNone)) return Status::ok();
  bool fits = given.is(Kind::kTuple) || given.is(Kind::kList);
  fits = fits && given.list->items.size() == 2;
  for (size_t i = 0; fits && i < 2; ++i) {
    const Value& part = given.list->items[i];
    fits = part.is_string() && static_cast<int64_t>(part.text->size()) <= kMaxIndent;
    if (fits) (i == 0 ? layout->item_separator : layout->key_separator) = *part.text;
  }
  if (fits) return Status::ok();
  return Status::error(Code::kInvalidArgument, "tojson's separators are two strings");
}

Status tojson_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[4] = {Value::of(false), Value::none(), Value::none(), Value::of(false)};
  SHARPI_TRY(bind(arguments, "tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, p));
  JsonLayout layout;
  layout.ensure_ascii = truthy(p[0]);
  layout.sort_keys = truthy(p[3]);
  SHARPI_TRY(read_indent(p[1], &layout));
  SHARPI_TRY(read_separators(p[2], &layout));
  MarkedText text;
  SHARPI_TRY(write_json(value, layout, heap, &text));
  *out = heap->text(std::move(text));
  return Status::ok();
}

Status attr_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p;
  SHARPI_TRY(bind(arguments, "attr", {"name"}, &p));
  if (value.is(Kind::kNamespace) && p.is_string()) {
    const Value* found = nullptr;
    SHARPI_TRY(find_key(*value.dict, p, heap, &found));
    if (found != nullptr) {
      *out = *found;
      return Status::ok();
    }
  }
  *out = heap->undefined("no such attribute");  // keys of a dict are no attributes
  return Status::ok();
}

Status value_filter(Filter filter, const Value& value, const Arguments& arguments, Heap* heap,
                    Value* out) {
  switch (filter) {
    case Filter::kAbs:
      return abs_filter(value, out);
    case Filter::kAttr:
      return attr_filter(value, arguments, heap, out);
    case Filter::kCount: {
      int64_t n = 0;
      SHARPI_TRY(length(value, heap, &n));
      *out = Value::of(n);
      return Status::ok();
    }
    case Filter::kDefault:
      return default_filter(value, arguments, heap, out);
    case Filter::kFloat:
      return float_filter(value, arguments, heap, out);
    case Filter::kInt:
      return int_filter(value, arguments, heap, out);
    case Filter::kRound:
      return round_filter(value, arguments, out);
    case Filter::kTojson:
      return tojson_filter(value, arguments, heap, out);
    default:
      return first_or_last(filter, value, heap, out);
  }
}

}  // namespace

Filter find_filter(std::string_view name) {
  const auto* it = std::find_if(std::begin(kFilters), std::end(kFilters),
                                [&](const auto& f) { return f.first == name; });
  return it == std::end(kFilters) ? Filter::kUnknown : it->second;
}

Status as_text(const Value& value, Heap* heap, Value* out) {
  *out = value;
  if (value.is_string()) return Status::ok();
  MarkedText text;
  SHARPI_TRY(print(value, heap, &text));
  *out = heap->text(std::move(text));
  return Status::ok();
}

Status attribute_of(const Value& value, const Value& path, Heap* heap, Value* out) {
  *out = value;
  if (!path.is_string()) return item_of(value, path, heap, out);
  std::string_view rest = path.bytes();
  for (;;) {
    const size_t dot = rest.find('.');
    const std::string_view part = rest.substr(0, dot);
    int64_t index = 0;
    const bool number =
        !part.empty() && part.find_first_not_of("0123456789") == part.npos &&
        std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc();
    const Value object = *out;
    SHARPI_TRY(heap->charge(part.size() + 16));
    SHARPI_TRY(item_of(object, number ? Value::of(index) : heap->text(part, false), heap, out));
    if (dot == rest.npos) return Status::ok();
    rest.remove_prefix(dot + 1);
  }
}

Status apply_filter(Filter filter, std::string_view name, const Value& value,
                    const Arguments& arguments, Heap* heap, Value* out, int depth) {
  if (filter == Filter::kUnknown) {
    return Status::error(Code::kUnsupported, "the filter \"%.*s\" is not supported",
                         static_cast<int>(std::min<size_t>(name.size(), 64)), name.data());
  }
  if (heap->stack().is_spent()) return StackBound::spent();
  if (depth > kMaxFilterDepth) {
    return Status::error(Code::kDoesNotFit, "filters apply filters more than %d deep",
                         kMaxFilterDepth);
  }
  if (filter >= Filter::kBatch) return list_filter(filter, value, arguments, heap, out, depth);
  if (filter >= Filter::kCapitalize) return text_filter(filter, value, arguments, heap, out);
  return value_filter(filter, value, arguments, heap, out);
}

}  // namespace sharpi::jinja
