// SPDX-License-Identifier: MIT
// dependentRequired and dependentSchemas: an object has the member that others depend on, and keeps
// to what follows from it, or it has it not.
#include <algorithm>

#include "text/grammar/schema_compiler.h"

namespace sharpi::grammar {

// The first one that was not dealt with. False: there is none.
bool SchemaCompiler::next_dependency(const SchemaParts& parts, Dependency* out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    uint32_t n = 0;
    for (const char* keyword : {"dependentRequired", "dependentSchemas", "dependencies"}) {
      const SchemaValue* all = member(*parts[i].schema, keyword);
      if (all == nullptr) continue;
      const std::string where = parts[i].where + "." + keyword;
      if (!is_object(*all)) return refuse(where, "is not an object"), false;
      for (const auto& [name, then] : all->dict->items) {
        if (n++ < parts[i].n_dependent) continue;
        *out = {i, std::string(name.bytes()), &then, where + "." + std::string(name.bytes())};
        return true;
      }
    }
  }
  return false;
}

// Schemas that the document does not have: objects that have these members, or have one not.
const SchemaValue* SchemaCompiler::with_members(const std::vector<SchemaValue>& names) {
  std::string key = "with";
  for (const SchemaValue& name : names) key += '\0' + std::string(name.bytes());
  const SchemaValue*& known = added_[key];
  if (known != nullptr) return known;
  jinja::Dict* schema = heap_.dict();
  jinja::List* list = heap_.list();
  list->items = names;
  schema->set(heap_.text("type", false), heap_.text("object", false));
  schema->set(heap_.text("required", false), SchemaValue::of(jinja::Kind::kList, list));
  return known = &kept_.emplace_back(SchemaValue::of(jinja::Kind::kDict, schema));
}

const SchemaValue* SchemaCompiler::without_member(const std::string& name) {
  const SchemaValue*& known = added_["without" + ('\0' + name)];
  if (known != nullptr) return known;
  jinja::Dict *schema = heap_.dict(), *properties = heap_.dict();
  properties->set(heap_.text(name, false), SchemaValue::of(false));
  schema->set(heap_.text("type", false), heap_.text("object", false));
  schema->set(heap_.text("properties", false), SchemaValue::of(jinja::Kind::kDict, properties));
  return known = &kept_.emplace_back(SchemaValue::of(jinja::Kind::kDict, schema));
}

Expr SchemaCompiler::either_way(const SchemaParts& parts, const Dependency& on, int depth) {
  SchemaParts base = parts;
  ++base[on.part].n_dependent;
  uint32_t n = 0;
  for (const SchemaPart& part : base) n += part.n_dependent;
  if (n > kMaxDependencies) {
    unenforced(on.where, "is one dependency of members more than 6 in one object");
    return object(base, depth);
  }
  std::vector<SchemaValue> names{heap_.text(on.name, false)};
  SchemaParts with = base, without = base;
  if (is_list(*on.then)) {
    for (const SchemaValue& name : on.then->list->items) {
      if (!name.is_string()) return refuse(on.where, "is not a list of names");
      names.push_back(name);
    }
  }
  const bool call = parts[0].call;
  with.push_back({with_members(names), on.where, 0, {}, call, 0, true});
  without.push_back({without_member(on.name), on.where, 0, {}, call, 0, true});
  if (!is_list(*on.then)) with.push_back(applied(parts[on.part], *on.then, on.where));
  ObjectShape shape;
  if (!read_object(base, &shape)) return Expressions::kNothing;
  const bool is_named = std::any_of(shape.members.begin(), shape.members.end(),
                                    [&](const Member& m) { return m.name == on.name; });
  std::vector<Expr> choices{any(std::move(without), depth + 1)};
  if (is_named || shape.others || !shape.patterns.empty()) {
    choices.push_back(any(std::move(with), depth + 1));
  }
  return e_.either(std::move(choices));
}

}  // namespace sharpi::grammar
