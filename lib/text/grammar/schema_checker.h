// SPDX-License-Identifier: MIT
// One value held against one schema, part by part. What is found first is said.
// Thread rule: one thread an object.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/grammar/code_points.h"
#include "text/grammar/expressions.h"
#include "text/grammar/json_numbers.h"
#include "text/grammar/schema_document.h"

namespace sharpi::grammar {

// A place in the value.
struct ValuePlace {
  const ValuePlace* within;  // null: the whole
  std::string_view name;
  size_t index = SIZE_MAX;  // of an item; SIZE_MAX: a member
};

/// As JSONPath writes it: "$.a[2]".
std::string path_of(const ValuePlace& place);

// Which members or items of a value a schema says something of.
using Seen = std::vector<bool>;

/// The same text for values that are equal, and no other.
void append_canonical(const SchemaValue& v, std::string* out);

class SchemaChecker {
 public:
  explicit SchemaChecker(const SchemaValue* schema) : document_(schema, "schema") {
    expressions_.set_limits(kMaxWork, kMaxPatternBytes);
    character_ = characters(expressions_, CodePoints::all(), Spelling::kPlain);
  }

  Status whole(const SchemaValue& value) {
    const ValuePlace place{nullptr, "", 0};
    Seen seen(n_children(value));
    check(*document_.root().schema, value, place, &seen);
    return status_;
  }

 private:
  static constexpr int kMaxLevels = 160;  // of schemas within schemas, each a call within a call
  static constexpr uint64_t kMaxWork = uint64_t{1} << 22;
  static constexpr uint64_t kMaxPatternBytes = uint64_t{32} << 20;

  static void add_seen(const Seen& more, Seen* seen) {
    for (size_t i = 0; i < seen->size(); ++i) (*seen)[i] = (*seen)[i] || more[i];
  }
  static size_t n_children(const SchemaValue& v) {
    return is_list(v) ? v.list->items.size() : is_object(v) ? v.dict->items.size() : 0;
  }

  // A value is not valid. Inside of what may be not valid nothing is said.
  bool no(const ValuePlace& place, const std::string& what, const char* keyword) {
    if (n_quiet_ == 0 && status_.is_ok()) {
      status_ = Status::error(Code::kMismatch, "%.400s %.200s (%s)", path_of(place).c_str(),
                              what.c_str(), keyword);
    }
    return false;
  }
  // It cannot be said whether it is.
  bool fail(Code code, const std::string& what) {
    const bool known = !status_.is_ok() && status_.code() != Code::kMismatch;
    if (!known) status_ = Status::error(code, "%.600s", what.c_str());
    broken_ = true;
    return false;
  }

  bool check(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place, Seen* seen);
  bool check_child(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place) {
    Seen seen(n_children(v));
    return check(schema, v, place, &seen);
  }
  // The same, where not being valid is no failure.
  bool fits(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place, Seen* seen) {
    ++n_quiet_;
    Seen own(seen->size());
    const bool out = check(schema, v, place, &own);
    --n_quiet_;
    if (out) add_seen(own, seen);
    return out && !broken_;
  }
  bool fits_child(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place) {
    Seen seen(n_children(v));
    return fits(schema, v, place, &seen);
  }

  bool applied(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
               Seen* seen);
  bool choices(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
               Seen* seen);
  bool types(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place);
  bool number(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place);
  bool multiple(const SchemaValue& given, const Decimal& number, const ValuePlace& place);
  bool string(const SchemaValue& schema, std::string_view text, const ValuePlace& place);
  bool array(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place, Seen* seen);
  bool items(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place, Seen* seen);
  bool contains(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
                Seen* seen);
  bool object(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place, Seen* seen);
  bool members(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
               Seen* seen);
  bool dependent(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
                 Seen* seen);
  bool has_all(const SchemaValue& names, const SchemaValue& v, const ValuePlace& place,
               const char* keyword);
  bool unevaluated(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
                   Seen* seen);
  bool count(const SchemaValue& schema, const char* name, size_t n, const ValuePlace& place);
  bool matches(std::string_view pattern, std::string_view text);

  const SchemaDocument document_;
  Expressions expressions_;
  Expr character_ = 0;
  std::map<std::string, Expr, std::less<>> patterns_;
  std::map<const SchemaValue*, std::set<std::string>> listed_;  // values of enums
  Status status_;
  uint64_t left_ = kMaxWork;
  int depth_ = 0, n_quiet_ = 0;
  bool broken_ = false;
};

}  // namespace sharpi::grammar
