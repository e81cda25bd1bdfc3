// SPDX-License-Identifier: MIT
#include "text/jinja/value.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/jinja/characters.h"

namespace sharpi::jinja {
const Value* Dict::find(std::string_view key) const {
  for (const auto& [k, v] : items) {
    if (k.is_string() && k.bytes() == key) return &v;
  }
  return nullptr;
}

void Dict::set(const Value& key, const Value& value) {
  if (const Value* there = find(key.bytes())) {
    *const_cast<Value*>(there) = value;
    return;
  }
  items.emplace_back(key, value);
}

Status Heap::charge(uint64_t bytes) {
  if (bytes > left_) {
    return Status::error(Code::kDoesNotFit, "the template builds more text than it is allowed to");
  }
  left_ -= bytes;
  return Status::ok();
}

bool Heap::takes_work(uint64_t units) {
  const bool fits = units <= work_left_;
  work_left_ = fits ? work_left_ - units : 0;
  return fits;
}

Status Heap::work(uint64_t units) {
  if (takes_work(units)) return Status::ok();
  return Status::error(Code::kDoesNotFit, "the template takes more work than it is allowed to");
}

Value Heap::undefined(std::string what) {
  owe(sizeof(Undefined) + kAllocation + what.size());
  Value v;
  v.undefined = &undefined_.emplace_back(Undefined{std::move(what)});
  return v;
}

Value Heap::method(const Value& self, uint32_t method, std::string_view name) {
  owe(sizeof(BoundMethod));
  Value v;
  v.kind = Kind::kMethod;
  v.method = &methods_.emplace_back(BoundMethod{self, method, name});
  return v;
}

const char* type_name(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
    case Kind::kNumeral:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kView:
      return "dict view";
    case Kind::kRange:
      return "range";
    case Kind::kGenerator:
      return "generator";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kFunction:
      return "function";
    case Kind::kMethod:
      return "method";
    case Kind::kLoop:
      return "LoopContext";
  }
  return "object";
}

bool truthy(const Value& v) {
  switch (v.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return v.boolean;
    case Kind::kInt:
      return v.integer != 0;
    case Kind::kFloat:
      return v.real != 0;
    case Kind::kString:
      return !v.text->empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange:
      return !v.list->items.empty();
    case Kind::kDict:
      return !v.dict->items.empty();
    case Kind::kNumeral:
    case Kind::kGenerator:
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kFunction:
    case Kind::kMethod:
    case Kind::kLoop:
      return true;
  }
  return true;
}

bool is_foreign(const Value& value) {
  const bool text = value.is_string() || value.is(Kind::kNumeral);
  return text ? value.text->has_foreign() : value.foreign;
}

Status walk(const Value& value, Heap* heap, std::vector<Value>* out) {
  switch (value.kind) {
    case Kind::kUndefined:
      return Status::ok();
    case Kind::kGenerator: {
      List& list = *value.list;
      SHARPI_TRY(heap->charge((list.items.size() - list.next) * sizeof(Value)));
      out->insert(out->end(), list.items.begin() + static_cast<std::ptrdiff_t>(list.next),
                  list.items.end());
      list.next = list.items.size();
      return Status::ok();
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange:
      SHARPI_TRY(heap->charge(value.list->items.size() * sizeof(Value)));
      *out = value.list->items;
      return Status::ok();
    case Kind::kDict:
      SHARPI_TRY(heap->charge(value.dict->items.size() * sizeof(Value)));
      for (const auto& [k, v] : value.dict->items) out->push_back(k);
      return Status::ok();
    case Kind::kString: {
      const std::string& s = value.text->bytes();
      for (size_t at = 0; at < s.size();) {
        const size_t n = std::max(utf8_character(s, at), 1u);
        SHARPI_TRY(heap->charge(n + 2 * sizeof(Value)));
        MarkedText one;
        one.append(*value.text, at, at + n);
        out->push_back(heap->text(std::move(one)));
        at += n;
      }
      return Status::ok();
    }
    default:
      return Status::error(Code::kInvalidArgument, "'%s' object is not iterable", type_name(value));
  }
}

Status length(const Value& value, Heap* heap, int64_t* out) {
  size_t n = 0;
  switch (value.kind) {
    case Kind::kUndefined:
      break;
    case Kind::kString:
      SHARPI_TRY(heap->work(value.text->size()));
      n = count_characters(value.bytes());
      break;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView:
    case Kind::kRange:
      n = value.list->items.size();
      break;
    case Kind::kDict:
      n = value.dict->items.size();
      break;
    default:
      return Status::error(Code::kInvalidArgument, "object of type '%s' has no len()",
                           type_name(value));
  }
  *out = static_cast<int64_t>(n);
  return Status::ok();
}

size_t count_characters(std::string_view text) {
  size_t n = 0;
  for (size_t at = 0; at < text.size(); ++n) at += std::max(utf8_character(text, at), 1u);
  return n;
}

size_t byte_of_character(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += std::max(utf8_character(text, at), 1u);
  return at;
}

bool is_blank(uint32_t cp) {
  return (cp >= 0x09 && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 ||
         cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 ||
         cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

}  // namespace sharpi::jinja
