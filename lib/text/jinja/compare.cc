// SPDX-License-Identifier: MIT
// Comparing values, and finding them in dicts. All of it is charged as work: lists that share their
// items are compared in a time that has nothing to do with the bytes that they take.
#include <algorithm>

#include "os/c_locale.h"
#include "text/jinja/value.h"

namespace sharpi::jinja {
namespace {

/// Of lists in lists. Keys of dicts begin at none again, so that only the stack bounds values whose
/// keys hold dicts.
constexpr int kMaxCompareDepth = 64;
constexpr uint64_t kPairWork = 16;      // of two values
constexpr uint64_t kLookWork = 2;       // of one key of a dict
constexpr uint64_t kBytesPerWork = 16;  // of texts that are compared

double as_real(const Value& v) {
  if (v.is(Kind::kNumeral)) return os::real_of_digits(v.text->bytes().c_str());
  return v.is(Kind::kFloat) ? v.real
         : v.is(Kind::kInt) ? static_cast<double>(v.integer)
                            : static_cast<double>(v.boolean);
}

/// A number that may be compared as a real one; exact is what 64 bits hold.
bool is_real(const Value& v) {
  return v.is(Kind::kFloat) || v.is(Kind::kNumeral);
}
bool is_ordered(const Value& v) {
  return v.is_number() || v.is(Kind::kNumeral);
}

int64_t as_integer(const Value& v) {
  return v.is(Kind::kInt) ? v.integer : static_cast<int64_t>(v.boolean);
}

Status equal_lists(const List& a, const List& b, Heap* heap, bool* out, int depth) {
  *out = a.items.size() == b.items.size();
  for (size_t i = 0; *out && i < a.items.size(); ++i) {
    SHARPI_TRY(equal(a.items[i], b.items[i], heap, out, depth + 1));
  }
  return Status::ok();
}

Status equal_dicts(const Dict& a, const Dict& b, Heap* heap, bool* out, int depth) {
  *out = a.items.size() == b.items.size();
  for (size_t i = 0; *out && i < a.items.size(); ++i) {
    const Value* other = nullptr;
    SHARPI_TRY(find_key(b, a.items[i].first, heap, &other));
    *out = other != nullptr;
    if (*out) SHARPI_TRY(equal(a.items[i].second, *other, heap, out, depth + 1));
  }
  return Status::ok();
}

}  // namespace

Status equal(const Value& a, const Value& b, Heap* heap, bool* out, int depth) {
  SHARPI_TRY(heap->work(kPairWork));
  *out = false;
  if (depth > kMaxCompareDepth) return Status::ok();
  if (heap->stack().is_spent()) return StackBound::spent();
  if (a.is_number() && b.is_number()) {
    const bool real = a.is(Kind::kFloat) || b.is(Kind::kFloat);
    *out = real ? as_real(a) == as_real(b) : as_integer(a) == as_integer(b);
    return Status::ok();
  }
  if (a.kind != b.kind) return Status::ok();
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      *out = true;
      return Status::ok();
    case Kind::kNumeral:
    case Kind::kString:
      if (a.text->size() != b.text->size()) return Status::ok();
      SHARPI_TRY(heap->work(a.text->size() / kBytesPerWork));
      *out = a.bytes() == b.bytes();
      return Status::ok();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      *out = a.list == b.list;
      return *out ? Status::ok() : equal_lists(*a.list, *b.list, heap, out, depth);
    case Kind::kDict:
      *out = a.dict == b.dict;
      return *out ? Status::ok() : equal_dicts(*a.dict, *b.dict, heap, out, depth);
    case Kind::kFunction:
      *out = a.function == b.function;
      return Status::ok();
    case Kind::kGenerator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kMethod:
    case Kind::kLoop:
      *out = a.list == b.list;  // the same object
      return Status::ok();
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      break;  // numbers were compared above
  }
  return Status::ok();
}

/// Asks for no room: equal() went as deep into the same lists before.
Status less(const Value& a, const Value& b, Heap* heap, bool* out, int depth) {
  SHARPI_TRY(heap->work(kPairWork));
  if (is_ordered(a) && is_ordered(b)) {
    const bool real = is_real(a) || is_real(b);
    *out = real ? as_real(a) < as_real(b) : as_integer(a) < as_integer(b);
    return Status::ok();
  }
  if (a.is_string() && b.is_string()) {
    SHARPI_TRY(heap->work(std::min(a.text->size(), b.text->size()) / kBytesPerWork));
    *out = a.bytes() < b.bytes();  // UTF-8 orders as its code points do
    return Status::ok();
  }
  const bool lists = a.kind == b.kind && (a.is(Kind::kList) || a.is(Kind::kTuple));
  if (lists && depth < kMaxCompareDepth) {
    const size_t n = std::min(a.list->items.size(), b.list->items.size());
    for (size_t i = 0; i < n; ++i) {
      const Value &x = a.list->items[i], &y = b.list->items[i];
      bool same = false;
      SHARPI_TRY(equal(x, y, heap, &same));
      if (!same) return less(x, y, heap, out, depth + 1);
    }
    *out = a.list->items.size() < b.list->items.size();
    return Status::ok();
  }
  if (a.is(Kind::kUndefined))
    return Status::error(Code::kInvalidArgument, "%s", a.undefined->what.c_str());
  if (b.is(Kind::kUndefined))
    return Status::error(Code::kInvalidArgument, "%s", b.undefined->what.c_str());
  return Status::error(Code::kInvalidArgument, "'%s' and '%s' have no order", type_name(a),
                       type_name(b));
}

Status find_key(const Dict& dict, const Value& key, Heap* heap, const Value** out) {
  *out = nullptr;
  if (key.is_string()) {
    SHARPI_TRY(heap->work(dict.items.size() * (kLookWork + key.text->size() / kBytesPerWork)));
    *out = dict.find(key.bytes());
    return Status::ok();
  }
  for (const auto& [k, v] : dict.items) {
    bool same = false;
    if (!k.is_string()) SHARPI_TRY(equal(k, key, heap, &same));
    if (!same) continue;
    *out = &v;
    return Status::ok();
  }
  return heap->work(dict.items.size() * kLookWork);
}

Status set_key(Dict* dict, const Value& key, const Value& value, Heap* heap) {
  const Value* there = nullptr;
  SHARPI_TRY(find_key(*dict, key, heap, &there));
  if (there != nullptr) {
    *const_cast<Value*>(there) = value;
    return Status::ok();
  }
  SHARPI_TRY(heap->charge(2 * sizeof(dict->items[0])));
  dict->items.emplace_back(key, value);
  return Status::ok();
}

}  // namespace sharpi::jinja
