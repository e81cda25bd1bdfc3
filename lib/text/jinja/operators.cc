// SPDX-License-Identifier: MIT
#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "base/utf8.h"
#include "text/jinja/characters.h"
#include "text/jinja/methods.h"
#include "text/jinja/text_search.h"

namespace sharpi::jinja {
namespace {

Status needs(const Value& v) {
  return Status::error(Code::kInvalidArgument, "%s", v.undefined->what.c_str());
}

double real_of(const Value& v) {
  return v.is(Kind::kFloat) ? v.real
         : v.is(Kind::kInt) ? static_cast<double>(v.integer)
                            : static_cast<double>(v.boolean);
}

int64_t integer_of(const Value& v) {
  return v.is(Kind::kInt) ? v.integer : static_cast<int64_t>(v.boolean);
}

Status integer_power(int64_t base, int64_t exponent, Value* out) {
  if (exponent < 0) {
    if (base == 0) return Status::error(Code::kInvalidArgument, "division by zero");
    *out = Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
    return Status::ok();
  }
  int64_t result = 1;
  bool overflow = false;
  // Bases of more than one in size leave 64 bits before the loop gets long.
  if (base == 0 || base == 1) exponent = std::min<int64_t>(exponent, 1);
  if (base == -1) exponent = exponent % 2;
  for (; exponent > 0 && !overflow; --exponent) {
    overflow = __builtin_mul_overflow(result, base, &result);
  }
  if (overflow) return too_large();
  *out = Value::of(result);
  return Status::ok();
}

Status integers(Op op, int64_t a, int64_t b, Value* out) {
  int64_t result = 0;
  bool overflow = false;
  const bool divides = op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod;
  if (divides && b == 0) return Status::error(Code::kInvalidArgument, "division by zero");
  switch (op) {
    case Op::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case Op::kSub:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case Op::kMul:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case Op::kDiv:
      *out = Value::of(static_cast<double>(a) / static_cast<double>(b));
      return Status::ok();
    case Op::kFloorDiv:
      if (b == -1) {
        overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
      } else {
        result = a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
      }
      break;
    case Op::kMod:
      result = b == -1 ? 0 : a % b;
      if (result != 0 && (result < 0) != (b < 0)) result += b;
      break;
    default:
      return integer_power(a, b, out);
  }
  if (overflow) return too_large();
  *out = Value::of(result);
  return Status::ok();
}

Status reals(Op op, double a, double b, Value* out) {
  const bool divides = op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod;
  if (divides && b == 0) return Status::error(Code::kInvalidArgument, "division by zero");
  double result = 0;
  switch (op) {
    case Op::kAdd:
      result = a + b;
      break;
    case Op::kSub:
      result = a - b;
      break;
    case Op::kMul:
      result = a * b;
      break;
    case Op::kDiv:
      result = a / b;
      break;
    case Op::kFloorDiv:
      result = std::floor(a / b);
      break;
    case Op::kMod:
      result = std::fmod(a, b);
      if (result != 0 && (result < 0) != (b < 0)) result += b;
      break;
    default:
      result = std::pow(a, b);
  }
  *out = Value::of(result);
  return Status::ok();
}

/// Two strings. Where one is safe, the other one is escaped, and the result is safe.
Status add_texts(const Value& a, const Value& b, Heap* heap, Value* out) {
  SHARPI_TRY(
      heap->charge(a.text->size() + b.text->size() + a.text->mark_bytes() + b.text->mark_bytes()));
  MarkedText text;
  text.reserve(a.text->size() + b.text->size());
  const bool safe = a.safe || b.safe;
  for (const Value* v : {&a, &b}) {
    if (safe && !v->safe)
      SHARPI_TRY(escape_text(*v->text, heap, &text));
    else
      text.append(*v->text);
  }
  *out = heap->text(std::move(text), safe);
  return Status::ok();
}

Status add_lists(const Value& a, const Value& b, Heap* heap, Value* out) {
  const auto &x = a.list->items, &y = b.list->items;
  SHARPI_TRY(heap->charge((x.size() + y.size()) * sizeof(Value)));
  List* list = heap->list();
  list->items = x;
  list->items.insert(list->items.end(), y.begin(), y.end());
  *out = Value::of(a.kind, list);
  return Status::ok();
}

/// A string or a list, n times.
Status repeat(const Value& v, int64_t n, Heap* heap, Value* out) {
  const auto times = static_cast<uint64_t>(std::max<int64_t>(n, 0));
  const uint64_t each =
      v.is_string() ? v.text->size() + v.text->mark_bytes() : v.list->items.size() * sizeof(Value);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(times, each, &bytes)) bytes = UINT64_MAX;
  SHARPI_TRY(heap->charge(bytes));
  if (v.is_string()) {
    MarkedText text;
    for (uint64_t i = 0; i < times && each > 0; ++i) text.append(*v.text);
    *out = heap->text(std::move(text), v.safe);
    return Status::ok();
  }
  List* list = heap->list();
  for (uint64_t i = 0; i < times && each > 0; ++i) {
    list->items.insert(list->items.end(), v.list->items.begin(), v.list->items.end());
  }
  *out = Value::of(v.kind, list);
  return Status::ok();
}

bool repeats(const Value& v) {
  return v.is_string() || v.is(Kind::kList) || v.is(Kind::kTuple);
}

Status contains(const Value& container, const Value& v, Heap* heap, bool* out) {
  *out = false;
  if (container.is_string()) {
    if (!v.is_string()) {
      return Status::error(Code::kInvalidArgument,
                           "'in <string>' requires string as left operand, not %s", type_name(v));
    }
    TextSearch search(container.bytes(), v.bytes());
    SHARPI_TRY(search.prepare(heap));
    *out = search.next(0) != std::string_view::npos;
    return Status::ok();
  }
  if (container.is(Kind::kDict)) {
    const Value* found = nullptr;
    SHARPI_TRY(find_key(*container.dict, v, heap, &found));
    *out = found != nullptr;
    return Status::ok();
  }
  if (container.is(Kind::kUndefined)) return Status::ok();
  if (!container.is_listed()) {
    return Status::error(Code::kInvalidArgument, "argument of type '%s' is not iterable",
                         type_name(container));
  }
  for (const Value& item : container.list->items) {
    SHARPI_TRY(equal(item, v, heap, out));
    if (*out) break;
  }
  return Status::ok();
}

Status bound(const Value& v, int64_t standard, int64_t* out) {
  if (v.is(Kind::kUndefined)) return needs(v);
  if (!v.is(Kind::kNone) && !v.is(Kind::kInt) && !v.is(Kind::kBool)) {
    return Status::error(Code::kInvalidArgument, "slice indices must be integers or None");
  }
  *out = v.is(Kind::kNone) ? standard : integer_of(v);
  return Status::ok();
}

/// A text's part, character by character where the step is not 1.
Value slice_text(const Value& object, int64_t from, int64_t to, int64_t step, Heap* heap) {
  const MarkedText& text = *object.text;
  const std::string& s = text.bytes();
  MarkedText out;
  if (step == 1) {
    if (from < to) {
      const size_t begin = byte_of_character(s, static_cast<size_t>(from));
      const size_t n =
          byte_of_character(std::string_view(s).substr(begin), static_cast<size_t>(to - from));
      out.append(text, begin, begin + n);
    }
    return heap->text(std::move(out), object.safe);
  }
  std::vector<size_t> starts;  // charged by slice_of()
  for (size_t at = 0; at < s.size(); at += std::max(utf8_character(s, at), 1u))
    starts.push_back(at);
  for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
    const auto at = static_cast<size_t>(i);
    out.append(text, starts[at], at + 1 < starts.size() ? starts[at + 1] : s.size());
  }
  return heap->text(std::move(out), object.safe);
}

}  // namespace

Status too_large() {
  return Status::error(Code::kInvalidArgument, "an integer has more than 63 bits");
}

Status binary(Op op, const Value& a, const Value& b, Heap* heap, Value* out) {
  if (a.is(Kind::kUndefined)) return needs(a);
  if (op == Op::kMod && a.is_string()) return format_percent(a, b, heap, out);
  if (b.is(Kind::kUndefined)) return needs(b);
  if (a.is(Kind::kNumeral) || b.is(Kind::kNumeral)) return too_large();
  if (a.is_number() && b.is_number()) {
    const bool foreign = a.foreign || b.foreign;
    const bool real = a.is(Kind::kFloat) || b.is(Kind::kFloat);
    SHARPI_TRY(real ? reals(op, real_of(a), real_of(b), out)
                    : integers(op, integer_of(a), integer_of(b), out));
    out->foreign = foreign;
    return Status::ok();
  }
  if (op == Op::kAdd && a.is_string() && b.is_string()) return add_texts(a, b, heap, out);
  const bool lists = a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple));
  if (op == Op::kAdd && lists) return add_lists(a, b, heap, out);
  const auto counts = [](const Value& v) { return v.is(Kind::kInt) || v.is(Kind::kBool); };
  if (op == Op::kMul && repeats(a) && counts(b)) return repeat(a, integer_of(b), heap, out);
  if (op == Op::kMul && counts(a) && repeats(b)) return repeat(b, integer_of(a), heap, out);
  static constexpr const char* kNames[] = {"+", "-", "*", "/", "//", "%", "**"};
  return Status::error(Code::kInvalidArgument, "unsupported operand types for %s: '%s' and '%s'",
                       kNames[static_cast<size_t>(op)], type_name(a), type_name(b));
}

Status compare(Op op, const Value& a, const Value& b, Heap* heap, bool* out) {
  switch (op) {
    case Op::kEq:
      return equal(a, b, heap, out);
    case Op::kNe:
      SHARPI_TRY(equal(a, b, heap, out));
      *out = !*out;
      return Status::ok();
    case Op::kLt:
      return less(a, b, heap, out);
    case Op::kGt:
      return less(b, a, heap, out);
    case Op::kLe:
    case Op::kGe:
      SHARPI_TRY(op == Op::kLe ? less(a, b, heap, out) : less(b, a, heap, out));
      return *out ? Status::ok() : equal(a, b, heap, out);
    case Op::kIn:
      return contains(b, a, heap, out);
    case Op::kNotIn:
      SHARPI_TRY(contains(b, a, heap, out));
      *out = !*out;
      return Status::ok();
    default:
      return Status::error(Code::kInternal, "not a comparison");
  }
}

Status item_of(const Value& object, const Value& key, Heap* heap, Value* out) {
  if (object.is(Kind::kUndefined)) return needs(object);
  if (object.is(Kind::kDict)) {
    const Value* found = nullptr;
    SHARPI_TRY(find_key(*object.dict, key, heap, &found));
    if (found != nullptr) {
      *out = *found;
      return Status::ok();
    }
  }
  const bool indexed = object.is(Kind::kList) || object.is(Kind::kTuple) || object.is(Kind::kRange);
  if ((key.is(Kind::kInt) || key.is(Kind::kBool)) && (indexed || object.is_string())) {
    int64_t i = integer_of(key);
    int64_t n = 0;
    SHARPI_TRY(length(object, heap, &n));
    if (i < 0) i += n;
    if (i >= 0 && i < n) {
      if (indexed) {
        *out = object.list->items[static_cast<size_t>(i)];
      } else {
        SHARPI_TRY(heap->work(object.text->size()));
        *out = slice_text(object, i, i + 1, 1, heap);
      }
      return Status::ok();
    }
  }
  if (key.is_string()) {
    const Method method = find_method(key.bytes());
    if (has_method(object, method, key.bytes())) {
      *out = heap->method(object, static_cast<uint32_t>(method), key.bytes());
      return Status::ok();
    }
  }
  MarkedText name;
  if (key.is_string() || key.is_number()) SHARPI_TRY(represent(key, heap, &name));
  *out = heap->undefined(std::string("'") + type_name(object) + " object' has no attribute " +
                         name.bytes().substr(0, 64));
  return Status::ok();
}

Status slice_of(const Value& object, const Value& from, const Value& to, const Value& step,
                Heap* heap, Value* out) {
  if (object.is(Kind::kUndefined)) return needs(object);
  const bool listed = object.is(Kind::kList) || object.is(Kind::kTuple) || object.is(Kind::kRange);
  if (!object.is_string() && !listed) {
    *out = heap->undefined(std::string("'") + type_name(object) + "' object cannot be sliced");
    return Status::ok();
  }
  int64_t n = 0, stride = 1;
  SHARPI_TRY(length(object, heap, &n));
  SHARPI_TRY(bound(step, 1, &stride));
  if (stride == 0) return Status::error(Code::kInvalidArgument, "slice step cannot be zero");
  stride = std::clamp(stride, -n - 1, n + 1);
  const bool up = stride > 0;
  const int64_t low = up ? 0 : -1, high = up ? n : n - 1;
  int64_t begin = 0, end = 0;
  SHARPI_TRY(bound(from, up ? low : high, &begin));
  SHARPI_TRY(bound(to, up ? high : low, &end));
  if (begin < 0 && !from.is(Kind::kNone)) begin += n;
  if (end < 0 && !to.is(Kind::kNone)) end += n;
  begin = std::clamp(begin, low, high);
  end = std::clamp(end, low, high);
  if (object.is_string()) {
    const uint64_t each = stride == 1 ? 1 : 1 + sizeof(size_t);
    SHARPI_TRY(heap->charge(object.text->size() * each));
    *out = slice_text(object, begin, end, stride, heap);
    return Status::ok();
  }
  List* list = heap->list();
  SHARPI_TRY(heap->charge(sizeof(Value) * static_cast<size_t>(n)));
  for (int64_t i = begin; up ? i < end : i > end; i += stride) {
    list->items.push_back(object.list->items[static_cast<size_t>(i)]);
  }
  *out = Value::of(object.kind, list);
  return Status::ok();
}

}  // namespace sharpi::jinja
