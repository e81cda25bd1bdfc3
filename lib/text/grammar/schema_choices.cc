// SPDX-License-Identifier: MIT
// anyOf and oneOf.
#include <algorithm>
#include <set>

#include "text/grammar/schema_compiler.h"

namespace sharpi::grammar {

Expr SchemaCompiler::choice(const SchemaParts& parts, size_t at, const char* keyword, int depth) {
  const bool is_one = keyword == std::string_view("oneOf");
  SchemaParts base = parts;
  base[at].done |= is_one ? kDoneOneOf : kDoneAnyOf;
  const SchemaValue* list = member(*parts[at].schema, keyword);
  const std::string where = parts[at].where + "." + keyword;
  if (!is_list(*list) || list->list->items.empty())
    return refuse(where, "is not a list of schemas");
  std::vector<SchemaParts> choices;
  std::vector<Expr> made;
  for (size_t i = 0; i < list->list->items.size() && ok(); ++i) {
    SchemaParts chosen = base;
    chosen.push_back(
        applied(parts[at], list->list->items[i], where + "[" + std::to_string(i) + "]"));
    made.push_back(any(chosen, depth + 1));
    choices.push_back(std::move(chosen));
  }
  if (is_one && ok()) return exactly_one(parts, parts[at], choices, std::move(made));
  return e_.either(std::move(made));
}

// The choices have to be apart from each other: by type, by a member that tells them apart, or as
// sets of strings and numbers, which can be taken from each other.
Expr SchemaCompiler::exactly_one(const SchemaParts& parts, const SchemaPart& at,
                                 const std::vector<SchemaParts>& choices, std::vector<Expr> made) {
  std::vector<bool> overlaps(choices.size());
  std::vector<Types> types;
  for (const SchemaParts& choice : choices) types.push_back(possible_types(choice, 0));
  for (size_t i = 0; i < choices.size(); ++i) {
    for (size_t k = i + 1; k < choices.size() && ok(); ++k) {
      if (made[i] == Expressions::kNothing || made[k] == Expressions::kNothing) continue;
      if (!e_.spend(4)) return Expressions::kNothing;
      if ((types[i] & types[k]) == 0 || never_both(choices[i], choices[k])) continue;
      const bool composed = ((types[i] | types[k]) & (kObject | kArray)) != 0;
      const bool rules = e_.node(made[i]).kind == Expressions::Kind::kRule ||
                         e_.node(made[k]).kind == Expressions::Kind::kRule;
      if (composed || rules) {
        unenforced(at.where + ".oneOf", "has alternatives " + std::to_string(i) + " and " +
                                            std::to_string(k) + " that may match the same value");
        continue;
      }
      overlaps[i] = overlaps[k] = true;
    }
  }
  // What is in one of the scalar choices and in no other: numbers of one spelling, so that equal
  // numbers are equal texts.
  const Expr scalars = e_.either({unique_numbers(e_), json_.boolean(), json_.null(),
                                  texts_of(parts).plain_string(0, Expressions::kAnyNumber)});
  std::vector<Expr> out;
  for (size_t i = 0; i < made.size() && ok(); ++i) {
    if (!overlaps[i]) {
      out.push_back(made[i]);
      continue;
    }
    std::vector<Expr> others;
    for (size_t k = 0; k < made.size(); ++k) {
      if (k != i && overlaps[k]) others.push_back(made[k]);
    }
    out.push_back(
        e_.terminal(e_.both({made[i], scalars, e_.complement(e_.either(std::move(others)))})));
  }
  return e_.either(std::move(out));
}

namespace {

// What is known of the members of an object.
struct Outline {
  std::map<std::string, const SchemaValue*> fixed;  // members of one value: their const or enum
  std::set<std::string> named, required;
  bool closed = false;  // others are refused
};

void outline(const SchemaParts& parts, Outline* out) {
  for (const SchemaPart& part : parts) {
    if (const SchemaValue* list = member(*part.schema, "required"); list && is_list(*list)) {
      for (const SchemaValue& name : list->list->items) {
        if (name.is_string()) out->required.insert(std::string(name.bytes()));
      }
    }
    const SchemaValue* others = member(*part.schema, "additionalProperties");
    const SchemaValue* properties = member(*part.schema, "properties");
    if (others != nullptr && is_false(*others)) out->closed = true;
    if (properties == nullptr || !is_object(*properties)) continue;
    for (const auto& [key, schema] : properties->dict->items) {
      const std::string name(key.bytes());
      out->named.insert(name);
      const SchemaValue* value = member(schema, "const");
      if (value == nullptr) value = member(schema, "enum");
      if (value != nullptr) out->fixed[name] = value;
    }
  }
}

bool share_a_value(const SchemaValue& a, const SchemaValue& b) {
  const auto list = [](const SchemaValue& v) {
    return is_list(v) ? v.list->items : std::vector<SchemaValue>{v};
  };
  for (const SchemaValue& x : list(a)) {
    for (const SchemaValue& y : list(b)) {
      if (same_json(x, y)) return true;
    }
  }
  return false;
}

// No object that is written for `a` fits `b`.
bool excludes(const Outline& a, const Outline& b) {
  for (const std::string& name : b.required) {
    if (!a.named.contains(name) && !a.required.contains(name)) return true;
  }
  for (const std::string& name : a.required) {
    if (b.closed && !b.named.contains(name)) return true;
    const auto mine = a.fixed.find(name), theirs = b.fixed.find(name);
    const bool both = mine != a.fixed.end() && theirs != b.fixed.end();
    if (both && !share_a_value(*mine->second, *theirs->second)) return true;
  }
  return false;
}

}  // namespace

bool SchemaCompiler::never_both(const SchemaParts& a, const SchemaParts& b) {
  SchemaParts flat[2];
  Outline outlines[2];
  for (const auto& [parts, i] : {std::pair(&a, 0), std::pair(&b, 1)}) {
    std::vector<const SchemaValue*> open;
    bool referred = false;
    for (const SchemaPart& part : *parts) {
      if (!flatten(part, &flat[i], &open, &referred)) return true;
    }
    outline(flat[i], &outlines[i]);
  }
  const Types common = possible_types(flat[0], 0) & possible_types(flat[1], 0);
  if (common != kObject) return false;
  return excludes(outlines[0], outlines[1]) && excludes(outlines[1], outlines[0]);
}

SchemaCompiler::Types SchemaCompiler::possible_types(const SchemaParts& parts, int depth) {
  SchemaParts flat;
  std::vector<const SchemaValue*> open;
  bool referred = false;
  for (const SchemaPart& part : parts) {
    if (!flatten(part, &flat, &open, &referred)) return 0;
  }
  Types out = types_of(flat);
  for (const SchemaPart& part : flat) {
    for (const char* keyword : {"enum", "const"}) {
      const SchemaValue* given = member(*part.schema, keyword);
      if (given == nullptr) continue;
      Types these = 0;
      const bool is_enum = keyword == std::string_view("enum") && is_list(*given);
      const auto list = is_enum ? given->list->items : std::vector<SchemaValue>{*given};
      for (const SchemaValue& value : list) {
        for (Types type = kNull; type <= kArray; type <<= 1) {
          if (allows({}, type, value)) these |= type;
        }
      }
      out &= these;
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      const uint32_t done = keyword[0] == 'a' ? kDoneAnyOf : kDoneOneOf;
      const SchemaValue* list = member(*part.schema, keyword);
      if (list == nullptr || !is_list(*list) || (part.done & done) != 0 || depth > 8) continue;
      Types these = 0;
      for (const SchemaValue& choice : list->list->items) {
        if (!e_.spend(1)) return kAllTypes;
        these |= possible_types({{&choice, part.where}}, depth + 1);
      }
      out &= these;
    }
  }
  return out;
}

}  // namespace sharpi::grammar
