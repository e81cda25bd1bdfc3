// SPDX-License-Identifier: MIT
// Filters over lists and dicts.
#include <algorithm>
#include <utility>

#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/tests.h"

namespace sharpi::jinja {
namespace {

using Items = std::vector<Value>;

/// Jinja's order without case: texts in lower case, everything else as it is.
Status sort_key(const Value& value, bool case_sensitive, Heap* heap, Value* out) {
  *out = value;
  if (case_sensitive || !value.is_string()) return Status::ok();
  return change_case(value, Case::kLower, heap, out);
}

Status key_of(const Value& item, const Value& attribute, bool case_sensitive, Heap* heap,
              Value* out) {
  Value picked = item;
  if (!attribute.is(Kind::kNone)) SHARPI_TRY(attribute_of(item, attribute, heap, &picked));
  return sort_key(picked, case_sensitive, heap, out);
}

/// A stable sort whose order may fail. Merges, so that the number of comparisons is bounded.
Status merge_sort(std::vector<std::pair<Value, Value>>* keyed, bool reverse, Heap* heap) {
  const size_t n = keyed->size();
  std::vector<std::pair<Value, Value>> other(n);
  for (size_t width = 1; width < n; width *= 2) {
    for (size_t low = 0; low < n; low += 2 * width) {
      const size_t middle = std::min(low + width, n), high = std::min(low + 2 * width, n);
      size_t a = low, b = middle;
      for (size_t to = low; to < high; ++to) {
        bool take_b = a == middle;
        if (a < middle && b < high) {
          const Value &x = (*keyed)[a].first, &y = (*keyed)[b].first;
          SHARPI_TRY(reverse ? less(x, y, heap, &take_b) : less(y, x, heap, &take_b));
        }
        other[to] = take_b ? (*keyed)[b++] : (*keyed)[a++];
      }
    }
    keyed->swap(other);
  }
  return Status::ok();
}

Status sort_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[3] = {Value::of(false), Value::of(false), Value::none()};
  SHARPI_TRY(bind(arguments, "sort", {"reverse", "case_sensitive", "attribute"}, p));
  Items items;
  SHARPI_TRY(walk(value, heap, &items));
  std::vector<std::pair<Value, Value>> keyed(items.size());
  for (size_t i = 0; i < items.size(); ++i) {
    keyed[i].second = items[i];
    SHARPI_TRY(key_of(items[i], p[2], truthy(p[1]), heap, &keyed[i].first));
  }
  SHARPI_TRY(merge_sort(&keyed, truthy(p[0]), heap));
  List* list = heap->list();
  for (const auto& [key, item] : keyed) list->items.push_back(item);
  *out = Value::of(Kind::kList, list);
  return Status::ok();
}

Value pair_of(const Value& key, const Value& value, Heap* heap) {
  List* pair = heap->list();
  pair->items = {key, value};
  return Value::of(Kind::kTuple, pair);
}

Status dictsort_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[3] = {Value::of(false), heap->text("key", false), Value::of(false)};
  SHARPI_TRY(bind(arguments, "dictsort", {"case_sensitive", "by", "reverse"}, p));
  if (!value.is(Kind::kDict)) {
    return Status::error(Code::kInvalidArgument, "dictsort wants a dict, not %s", type_name(value));
  }
  const bool by_value = p[1].is_string() && p[1].bytes() == "value";
  if (!by_value && !(p[1].is_string() && p[1].bytes() == "key")) {
    return Status::error(Code::kInvalidArgument,
                         "You can only sort by either \"key\" or \"value\"");
  }
  std::vector<std::pair<Value, Value>> keyed;
  SHARPI_TRY(heap->charge(value.dict->items.size() * (3 * sizeof(Value) + sizeof(List))));
  for (const auto& [k, v] : value.dict->items) {
    auto& [key, item] = keyed.emplace_back();
    item = pair_of(k, v, heap);
    SHARPI_TRY(sort_key(by_value ? v : k, truthy(p[0]), heap, &key));
  }
  SHARPI_TRY(merge_sort(&keyed, truthy(p[2]), heap));
  List* list = heap->list();
  for (const auto& [key, item] : keyed) list->items.push_back(item);
  *out = Value::of(Kind::kList, list);
  return Status::ok();
}

Status items_filter(const Value& value, Heap* heap, Value* out) {
  List* list = heap->list();
  if (value.is(Kind::kDict)) {
    SHARPI_TRY(heap->charge(value.dict->items.size() * (2 * sizeof(Value) + sizeof(List))));
    for (const auto& [k, v] : value.dict->items) list->items.push_back(pair_of(k, v, heap));
  } else if (!value.is(Kind::kUndefined)) {
    return Status::error(Code::kInvalidArgument, "Can only get item pairs from a mapping.");
  }
  *out = Value::of(Kind::kGenerator, list);
  return Status::ok();
}

Status map_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out,
                  int depth) {
  Items items;
  if (truthy(value)) SHARPI_TRY(walk(value, heap, &items));  // none counts as nothing here
  List* list = heap->list();
  if (arguments.positional.empty()) {
    Value p[2] = {{}, {}};
    SHARPI_TRY(bind(arguments, "map", {"attribute", "default"}, p));
    if (p[0].is(Kind::kUndefined)) {
      return Status::error(Code::kInvalidArgument, "map requires a filter argument");
    }
    for (const Value& item : items) {
      Value& to = list->items.emplace_back();
      SHARPI_TRY(attribute_of(item, p[0], heap, &to));
      if (to.is(Kind::kUndefined) && !p[1].is(Kind::kUndefined)) to = p[1];
    }
  } else {
    const Value& name = arguments.positional[0];
    if (!name.is_string())
      return Status::error(Code::kInvalidArgument, "map wants a filter's name");
    const Filter filter = find_filter(name.bytes());
    Arguments rest = arguments;
    rest.positional.erase(rest.positional.begin());
    for (const Value& item : items) {
      SHARPI_TRY(apply_filter(filter, name.bytes(), item, rest, heap, &list->items.emplace_back(),
                              depth + 1));
    }
  }
  *out = Value::of(Kind::kGenerator, list);
  return Status::ok();
}

/// select, reject, selectattr, rejectattr: a test by name, or whether the value is true.
Status select_filter(Filter filter, const Value& value, const Arguments& arguments, Heap* heap,
                     Value* out) {
  const bool by_attribute = filter == Filter::kSelectattr || filter == Filter::kRejectattr;
  const bool wanted = filter == Filter::kSelect || filter == Filter::kSelectattr;
  Items items;
  if (truthy(value)) SHARPI_TRY(walk(value, heap, &items));  // none counts as nothing here
  Arguments rest = arguments;
  const auto take = [&rest] {
    const Value first = rest.positional.front();
    rest.positional.erase(rest.positional.begin());
    return first;
  };
  if (by_attribute && rest.positional.empty()) {
    return Status::error(Code::kInvalidArgument, "Missing parameter for attribute name");
  }
  const Value attribute = by_attribute ? take() : Value::none();
  const bool has_test = !rest.positional.empty();
  const Value name = has_test ? take() : Value::none();
  if (has_test && !name.is_string()) {
    return Status::error(Code::kInvalidArgument, "the name of a test is a string");
  }
  List* list = heap->list();
  for (const Value& item : items) {
    Value picked = item;
    if (by_attribute) SHARPI_TRY(attribute_of(item, attribute, heap, &picked));
    bool passes = truthy(picked);
    if (has_test) {
      const std::string_view test = name.bytes();
      SHARPI_TRY(apply_test(find_test(test), test, picked, rest, heap, &passes));
    }
    if (passes == wanted) list->items.push_back(item);
  }
  *out = Value::of(Kind::kGenerator, list);
  return Status::ok();
}

Status unique_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[2] = {Value::of(false), Value::none()};
  SHARPI_TRY(bind(arguments, "unique", {"case_sensitive", "attribute"}, p));
  Items items, seen;
  SHARPI_TRY(walk(value, heap, &items));
  List* list = heap->list();
  for (const Value& item : items) {
    Value key;
    SHARPI_TRY(key_of(item, p[1], truthy(p[0]), heap, &key));
    bool known = false;
    for (size_t i = 0; !known && i < seen.size(); ++i) {
      SHARPI_TRY(equal(seen[i], key, heap, &known));
    }
    if (known) continue;
    seen.push_back(key);
    list->items.push_back(item);
  }
  *out = Value::of(Kind::kGenerator, list);
  return Status::ok();
}

Status extreme_filter(Filter filter, const Value& value, const Arguments& arguments, Heap* heap,
                      Value* out) {
  Value p[2] = {Value::of(false), Value::none()};
  SHARPI_TRY(bind(arguments, "min", {"case_sensitive", "attribute"}, p));
  Items items;
  SHARPI_TRY(walk(value, heap, &items));
  *out = heap->undefined("No aggregated item, sequence was empty.");
  Value best;
  for (size_t i = 0; i < items.size(); ++i) {
    Value key;
    SHARPI_TRY(key_of(items[i], p[1], truthy(p[0]), heap, &key));
    bool better = i == 0;
    if (i > 0) {
      SHARPI_TRY(filter == Filter::kMin ? less(key, best, heap, &better)
                                        : less(best, key, heap, &better));
    }
    if (!better) continue;
    best = key;
    *out = items[i];
  }
  return Status::ok();
}

Status sum_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[2] = {Value::none(), Value::of(int64_t{0})};
  SHARPI_TRY(bind(arguments, "sum", {"attribute", "start"}, p));
  Items items;
  SHARPI_TRY(walk(value, heap, &items));
  *out = p[1];
  for (const Value& item : items) {
    Value picked = item;
    if (!p[0].is(Kind::kNone)) SHARPI_TRY(attribute_of(item, p[0], heap, &picked));
    const Value before = *out;
    SHARPI_TRY(binary(Op::kAdd, before, picked, heap, out));
  }
  return Status::ok();
}

Status batch_filter(const Value& value, const Arguments& arguments, Heap* heap, Value* out) {
  Value p[2] = {{}, Value::none()};
  SHARPI_TRY(bind(arguments, "batch", {"linecount", "fill_with"}, p));
  if (!p[0].is(Kind::kInt) || p[0].integer < 1 || p[0].integer > 100000) {
    return Status::error(Code::kInvalidArgument, "batch wants a number of items from 1");
  }
  const auto size = static_cast<size_t>(p[0].integer);
  Items items;
  SHARPI_TRY(walk(value, heap, &items));
  List* list = heap->list();
  for (size_t at = 0; at < items.size(); at += size) {
    List* part = heap->list();
    for (size_t i = at; i < std::min(at + size, items.size()); ++i) part->items.push_back(items[i]);
    SHARPI_TRY(heap->charge(size * sizeof(Value)));
    if (!p[1].is(Kind::kNone)) part->items.resize(size, p[1]);
    list->items.push_back(Value::of(Kind::kList, part));
  }
  *out = Value::of(Kind::kGenerator, list);
  return Status::ok();
}

Status reverse_filter(const Value& value, Heap* heap, Value* out) {
  if (value.is_string()) {
    return slice_of(value, Value::none(), Value::none(), Value::of(int64_t{-1}), heap, out);
  }
  List* list = heap->list();
  SHARPI_TRY(walk(value, heap, &list->items));
  std::reverse(list->items.begin(), list->items.end());
  *out = Value::of(Kind::kGenerator, list);
  return Status::ok();
}

}  // namespace

Status list_filter(Filter filter, const Value& value, const Arguments& arguments, Heap* heap,
                   Value* out, int depth) {
  switch (filter) {
    case Filter::kBatch:
      return batch_filter(value, arguments, heap, out);
    case Filter::kDictsort:
      return dictsort_filter(value, arguments, heap, out);
    case Filter::kItems:
      return items_filter(value, heap, out);
    case Filter::kList: {
      List* list = heap->list();
      SHARPI_TRY(walk(value, heap, &list->items));
      *out = Value::of(Kind::kList, list);
      return Status::ok();
    }
    case Filter::kMap:
      return map_filter(value, arguments, heap, out, depth);
    case Filter::kMax:
    case Filter::kMin:
      return extreme_filter(filter, value, arguments, heap, out);
    case Filter::kReverse:
      return reverse_filter(value, heap, out);
    case Filter::kSort:
      return sort_filter(value, arguments, heap, out);
    case Filter::kSum:
      return sum_filter(value, arguments, heap, out);
    case Filter::kUnique:
      return unique_filter(value, arguments, heap, out);
    default:
      return select_filter(filter, value, arguments, heap, out);
  }
}

}  // namespace sharpi::jinja
