// SPDX-License-Identifier: MIT
// Items of arrays and members of objects, held against a schema.
#include "text/grammar/schema_checker.h"

namespace sharpi::grammar {

bool SchemaChecker::array(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
                          Seen* seen) {
  const auto& list = v.list->items;
  if (!count(schema, "minItems", list.size(), place) ||
      !count(schema, "maxItems", list.size(), place)) {
    return false;
  }
  const SchemaValue* distinct = member(schema, "uniqueItems");
  if (distinct != nullptr && distinct->is(jinja::Kind::kBool) && distinct->boolean) {
    std::set<std::string> known;
    for (size_t i = 0; i < list.size(); ++i) {
      std::string text;
      append_canonical(list[i], &text);
      if (known.insert(std::move(text)).second) continue;
      return no({&place, "", i}, "is equal to another item", "uniqueItems");
    }
  }
  return items(schema, v, place, seen) && contains(schema, v, place, seen);
}

bool SchemaChecker::items(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
                          Seen* seen) {
  const SchemaValue *prefix = member(schema, "prefixItems"), *rest = member(schema, "items");
  if (rest != nullptr && is_list(*rest)) {  // as drafts before 2020-12 have it
    prefix = rest;
    rest = member(schema, "additionalItems");
  }
  const auto& list = v.list->items;
  const size_t n = prefix != nullptr && is_list(*prefix) ? prefix->list->items.size() : 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const SchemaValue* one = i < n ? &prefix->list->items[i] : rest;
    if (one == nullptr) break;
    if (!check_child(*one, list[i], {&place, "", i})) return false;
    (*seen)[i] = true;
  }
  return true;
}

bool SchemaChecker::contains(const SchemaValue& schema, const SchemaValue& v,
                             const ValuePlace& place, Seen* seen) {
  const SchemaValue* one = member(schema, "contains");
  if (one == nullptr) return true;
  size_t n = 0;
  for (size_t i = 0; i < v.list->items.size(); ++i) {
    if (!fits_child(*one, v.list->items[i], {&place, "", i})) continue;
    ++n;
    (*seen)[i] = true;
  }
  if (broken_) return false;
  if (member(schema, "minContains") == nullptr && n == 0) {
    return no(place, "has no such item", "contains");
  }
  return count(schema, "minContains", n, place) && count(schema, "maxContains", n, place);
}

bool SchemaChecker::has_all(const SchemaValue& names, const SchemaValue& v, const ValuePlace& place,
                            const char* keyword) {
  if (!is_list(names)) {
    return fail(Code::kInvalidArgument, std::string(keyword) + " of the schema is no list");
  }
  for (const SchemaValue& name : names.list->items) {
    if (!name.is_string() || member(v, name.bytes()) != nullptr) continue;
    return no(place, "has no " + std::string(name.bytes()), keyword);
  }
  return true;
}

bool SchemaChecker::object(const SchemaValue& schema, const SchemaValue& v, const ValuePlace& place,
                           Seen* seen) {
  const size_t n = v.dict->items.size();
  if (!count(schema, "minProperties", n, place) || !count(schema, "maxProperties", n, place)) {
    return false;
  }
  const SchemaValue* required = member(schema, "required");
  const bool asks = required != nullptr && !required->is(jinja::Kind::kBool);  // of drafts before 4
  if (asks && !has_all(*required, v, place, "required")) return false;
  return members(schema, v, place, seen) && dependent(schema, v, place, seen);
}

bool SchemaChecker::members(const SchemaValue& schema, const SchemaValue& v,
                            const ValuePlace& place, Seen* seen) {
  const SchemaValue *named = member(schema, "properties"),
                    *patterns = member(schema, "patternProperties"),
                    *others = member(schema, "additionalProperties"),
                    *names = member(schema, "propertyNames");
  for (size_t i = 0; i < v.dict->items.size(); ++i) {
    const auto& [key, value] = v.dict->items[i];
    const ValuePlace at{&place, key.bytes()};
    bool described = false;
    const SchemaValue* own = named != nullptr ? member(*named, key.bytes()) : nullptr;
    if (own != nullptr) {
      described = true;
      if (!check_child(*own, value, at)) return false;
    }
    for (size_t k = 0; patterns != nullptr && is_object(*patterns); ++k) {
      if (k == patterns->dict->items.size()) break;
      const auto& [pattern, one] = patterns->dict->items[k];
      if (!matches(pattern.bytes(), key.bytes())) continue;
      described = true;
      if (!check_child(one, value, at)) return false;
    }
    if (!described && others != nullptr) {
      described = true;
      if (!check_child(*others, value, at)) return false;
    }
    if (described) (*seen)[i] = true;
    if (names != nullptr && !check_child(*names, key, at)) return false;
  }
  return !broken_;
}

bool SchemaChecker::dependent(const SchemaValue& schema, const SchemaValue& v,
                              const ValuePlace& place, Seen* seen) {
  for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
    const SchemaValue* all = member(schema, keyword);
    if (all == nullptr || !is_object(*all)) continue;
    for (const auto& [name, then] : all->dict->items) {
      if (member(v, name.bytes()) == nullptr) continue;
      const bool fits =
          is_list(then) ? has_all(then, v, place, keyword) : check(then, v, place, seen);
      if (!fits) return false;
    }
  }
  return true;
}

bool SchemaChecker::unevaluated(const SchemaValue& schema, const SchemaValue& v,
                                const ValuePlace& place, Seen* seen) {
  const bool list = is_list(v);
  if (!list && !is_object(v)) return true;
  const SchemaValue* others = member(schema, list ? "unevaluatedItems" : "unevaluatedProperties");
  if (others == nullptr) return true;
  for (size_t i = 0; i < seen->size(); ++i) {
    if ((*seen)[i]) continue;
    const SchemaValue& child = list ? v.list->items[i] : v.dict->items[i].second;
    const ValuePlace at =
        list ? ValuePlace{&place, "", i} : ValuePlace{&place, v.dict->items[i].first.bytes()};
    if (!check_child(*others, child, at)) return false;
    (*seen)[i] = true;
  }
  return true;
}

}  // namespace sharpi::grammar
