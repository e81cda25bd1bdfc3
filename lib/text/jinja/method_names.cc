// SPDX-License-Identifier: MIT
// Which types have which methods, by name.
#include <algorithm>
#include <iterator>

#include "text/jinja/methods.h"

namespace sharpi::jinja {
namespace {

struct Entry {
  std::string_view name;
  Method method;
  bool string, list, dict;  // types that have it
};

constexpr Entry kMethods[] = {
    {"strip", Method::kStrip, true, false, false},
    {"lstrip", Method::kLstrip, true, false, false},
    {"rstrip", Method::kRstrip, true, false, false},
    {"split", Method::kSplit, true, false, false},
    {"rsplit", Method::kRsplit, true, false, false},
    {"splitlines", Method::kSplitlines, true, false, false},
    {"startswith", Method::kStartswith, true, false, false},
    {"endswith", Method::kEndswith, true, false, false},
    {"replace", Method::kReplace, true, false, false},
    {"lower", Method::kLower, true, false, false},
    {"upper", Method::kUpper, true, false, false},
    {"title", Method::kTitle, true, false, false},
    {"capitalize", Method::kCapitalize, true, false, false},
    {"join", Method::kJoin, true, false, false},
    {"format", Method::kFormat, true, false, false},
    {"find", Method::kFind, true, false, false},
    {"rfind", Method::kRfind, true, false, false},
    {"isdigit", Method::kIsdigit, true, false, false},
    {"isspace", Method::kIsspace, true, false, false},
    {"isalpha", Method::kIsalpha, true, false, false},
    {"isalnum", Method::kIsalnum, true, false, false},
    {"isupper", Method::kIsupper, true, false, false},
    {"islower", Method::kIslower, true, false, false},
    {"removeprefix", Method::kRemoveprefix, true, false, false},
    {"removesuffix", Method::kRemovesuffix, true, false, false},
    {"zfill", Method::kZfill, true, false, false},
    {"count", Method::kCount, true, true, false},
    {"index", Method::kIndex, true, true, false},
    {"items", Method::kItems, false, false, true},
    {"keys", Method::kKeys, false, false, true},
    {"values", Method::kValues, false, false, true},
    {"get", Method::kGet, false, false, true},
    {"copy", Method::kCopy, false, true, true},
    {"append", Method::kRefused, false, true, false},
    {"clear", Method::kRefused, false, true, true},
    {"extend", Method::kRefused, false, true, false},
    {"insert", Method::kRefused, false, true, false},
    {"pop", Method::kRefused, false, true, true},
    {"popitem", Method::kRefused, false, false, true},
    {"remove", Method::kRefused, false, true, false},
    {"reverse", Method::kRefused, false, true, false},
    {"setdefault", Method::kRefused, false, false, true},
    {"sort", Method::kRefused, false, true, false},
    {"update", Method::kRefused, false, false, true},
    {"fromkeys", Method::kRefused, false, false, true},
    {"casefold", Method::kRefused, true, false, false},
    {"center", Method::kRefused, true, false, false},
    {"encode", Method::kRefused, true, false, false},
    {"expandtabs", Method::kRefused, true, false, false},
    {"format_map", Method::kRefused, true, false, false},
    {"isascii", Method::kRefused, true, false, false},
    {"isdecimal", Method::kRefused, true, false, false},
    {"isidentifier", Method::kRefused, true, false, false},
    {"isnumeric", Method::kRefused, true, false, false},
    {"isprintable", Method::kRefused, true, false, false},
    {"istitle", Method::kRefused, true, false, false},
    {"ljust", Method::kRefused, true, false, false},
    {"maketrans", Method::kRefused, true, false, false},
    {"partition", Method::kRefused, true, false, false},
    {"rindex", Method::kRefused, true, false, false},
    {"rjust", Method::kRefused, true, false, false},
    {"rpartition", Method::kRefused, true, false, false},
    {"swapcase", Method::kRefused, true, false, false},
    {"translate", Method::kRefused, true, false, false},
};

const Entry* find_entry(std::string_view name) {
  const auto* it = std::find_if(std::begin(kMethods), std::end(kMethods),
                                [&](const Entry& e) { return e.name == name; });
  return it == std::end(kMethods) ? nullptr : it;
}

}  // namespace

Method find_method(std::string_view name) {
  const Entry* entry = find_entry(name);
  return entry != nullptr ? entry->method : Method::kNone;
}

bool has_method(const Value& self, Method method, std::string_view name) {
  if (method == Method::kNone) return false;
  const Entry* e = find_entry(name);
  if (e == nullptr) return false;
  switch (self.kind) {
    case Kind::kString:
      return e->string;
    case Kind::kList:
      return e->list;
    case Kind::kTuple:
      return method == Method::kCount || method == Method::kIndex;
    case Kind::kDict:
      return e->dict;
    default:
      return false;
  }
}

}  // namespace sharpi::jinja
