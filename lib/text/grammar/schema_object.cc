// SPDX-License-Identifier: MIT
// Objects: the members that a schema names, in its order, then others where it asks for some.
#include <algorithm>

#include "text/grammar/schema_compiler.h"

namespace sharpi::grammar {
namespace {

constexpr size_t kMaxPatterns = 4;          // of names, in one object
constexpr std::string_view kNoName = "\n";  // that no argument of a call has

}  // namespace

bool SchemaCompiler::read_object(const SchemaParts& parts, ObjectShape* out) {
  bool names_any = false, requires_any = false, closed = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const SchemaPart& part = parts[i];
    count(part, "minProperties", &out->low);
    count(part, "maxProperties", &out->high);
    const SchemaValue* others = member(*part.schema, "additionalProperties");
    if (others != nullptr) (is_false(*others) ? closed : out->others) = true;
    const SchemaValue* unseen = member(*part.schema, "unevaluatedProperties");
    if (unseen != nullptr) (is_false(*unseen) ? closed : out->others) = true;
    const SchemaValue* required = member(*part.schema, "required");
    names_any |= !part.added && member(*part.schema, "properties") != nullptr;
    requires_any |=
        !part.added && required != nullptr && is_list(*required) && !required->list->items.empty();
    if (const SchemaValue* patterns = member(*part.schema, "patternProperties")) {
      const std::string where = part.where + ".patternProperties";
      if (!is_object(*patterns)) return refuse(where, "is not an object"), false;
      for (const auto& [key, schema] : patterns->dict->items) {
        const std::string at = where + "." + std::string(key.bytes());
        out->patterns.push_back({i, pattern(key.bytes(), at, json_), &schema, at});
      }
    }
    if (const SchemaValue* names = member(*part.schema, "propertyNames")) {
      SchemaParts strings;
      std::vector<const SchemaValue*> open;
      bool referred = false;
      const SchemaPart schema{names, part.where + ".propertyNames"};
      if (!flatten(schema, &strings, &open, &referred)) {
        out->name_rules.push_back(Expressions::kNothing);
      } else if (!strings.empty()) {
        const bool listed = std::any_of(strings.begin(), strings.end(), [](const auto& one) {
          return member(*one.schema, "enum") != nullptr || member(*one.schema, "const") != nullptr;
        });
        for (const SchemaPart& one : strings) {
          if (member(*one.schema, "anyOf") != nullptr || member(*one.schema, "oneOf") != nullptr) {
            return refuse(one.where, "is not supported for names with anyOf or oneOf"), false;
          }
        }
        out->name_rules.push_back(listed ? values(strings, kString) : string_terminal(strings));
      }
    }
  }
  if (out->patterns.size() > kMaxPatterns) {
    return refuse(parts[0].where, "has more than 4 patterns of names in one object"), false;
  }
  out->call = parts[0].call;
  const bool has_rules = !out->patterns.empty() || !out->name_rules.empty();
  if (has_rules && !json_.names_are_strings(out->call)) {
    unenforced(parts[0].where, "has patterns of names, which this model's calls cannot keep to");
    out->patterns.clear();
    out->name_rules.clear();
    out->others = true;
  }
  read_members(parts, out);
  const bool asks = !out->name_rules.empty() && !names_any;
  const bool free = !names_any && !requires_any && out->patterns.empty() && !closed;
  const bool too_few = out->low > out->members.size() && out->patterns.empty();
  out->others |= asks || free || too_few;
  return ok();
}

void SchemaCompiler::read_members(const SchemaParts& parts, ObjectShape* out) {
  std::map<std::string, size_t, std::less<>> known;
  const auto add = [&](std::string_view name) -> Member& {
    const auto [found, is_new] = known.try_emplace(std::string(name), out->members.size());
    if (is_new) out->members.push_back({std::string(name), {}, false, 0});
    return out->members[found->second];
  };
  for (const SchemaPart& part : parts) {
    const SchemaValue* properties = member(*part.schema, "properties");
    if (properties == nullptr) continue;
    if (!is_object(*properties)) {
      refuse(part.where + ".properties", "is not an object");
      return;
    }
    for (const auto& [key, schema] : properties->dict->items) add(key.bytes());
  }
  for (const SchemaPart& part : parts) {
    const SchemaValue* required = member(*part.schema, "required");
    // A boolean stands in a member's own schema in drafts before 4.
    if (required == nullptr || required->is(jinja::Kind::kBool)) continue;
    if (!is_list(*required)) {
      refuse(part.where + ".required", "is not a list of names");
      return;
    }
    for (const SchemaValue& name : required->list->items) {
      if (!name.is_string()) {
        refuse(part.where + ".required", "is not a list of names");
        return;
      }
      add(name.bytes()).required = true;
    }
  }
  add_member_parts(parts, out);
}

// Everything that holds for each member: its own schemas, those of patterns that its name matches,
// and of parts that do not name it, what they say of others.
void SchemaCompiler::add_member_parts(const SchemaParts& parts, ObjectShape* shape) {
  for (Member& m : shape->members) {
    const std::string quoted = json_.quoted(m.name);
    std::vector<bool> describes(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      bool described = false;
      if (const SchemaValue* properties = member(*parts[i].schema, "properties")) {
        if (const SchemaValue* schema = member(*properties, m.name)) {
          m.parts.push_back({schema, parts[i].where + ".properties." + m.name});
          described = true;
        }
      }
      for (const NamePattern& pattern : shape->patterns) {
        if (pattern.part != i || !matches(pattern.names, quoted)) continue;
        m.parts.push_back({pattern.schema, pattern.where});
        described = true;
      }
      const SchemaValue* others = member(*parts[i].schema, "additionalProperties");
      if (!described && others != nullptr) {
        m.parts.push_back({others, parts[i].where + ".additionalProperties"});
      }
      describes[i] = described || others != nullptr;
    }
    add_unevaluated(parts, "unevaluatedProperties", describes, &m.parts);
    for (const Expr names : shape->name_rules) {
      static const SchemaValue kNever = SchemaValue::of(false);
      if (!matches(names, quoted)) m.parts.push_back({&kNever, parts[0].where});
    }
  }
}

// Names that are none of the members', and match exactly these patterns.
Expr SchemaCompiler::other_names(const ObjectShape& shape, uint32_t matched) {
  std::vector<std::string_view> names;
  for (const Member& m : shape.members) names.push_back(m.name);
  std::vector<Expr> all{json_.plain_string(0, Expressions::kAnyNumber)};
  if (shape.patterns.empty() && shape.name_rules.empty()) {
    return json_.other_key(names, shape.call);
  }
  for (size_t i = 0; i < shape.patterns.size(); ++i) {
    const Expr names = shape.patterns[i].names;
    all.push_back((matched >> i & 1) != 0 ? names : e_.complement(names));
  }
  std::vector<std::string> named;
  for (const Member& m : shape.members) named.push_back(json_.quoted(m.name));
  all.push_back(e_.complement(e_.texts({named.begin(), named.end()})));
  all.insert(all.end(), shape.name_rules.begin(), shape.name_rules.end());
  return e_.terminal(e_.both(std::move(all)));
}

bool SchemaCompiler::other_parts(const SchemaParts& parts, const ObjectShape& shape,
                                 uint32_t matched, SchemaParts* out) {
  std::vector<bool> describes(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    bool described = false;
    for (size_t k = 0; k < shape.patterns.size(); ++k) {
      if (shape.patterns[k].part != i || (matched >> k & 1) == 0) continue;
      out->push_back({shape.patterns[k].schema, shape.patterns[k].where});
      described = true;
    }
    const SchemaValue* others = member(*parts[i].schema, "additionalProperties");
    describes[i] = described || others != nullptr;
    if (described || others == nullptr) continue;
    out->push_back({others, parts[i].where + ".additionalProperties"});
  }
  add_unevaluated(parts, "unevaluatedProperties", describes, out);
  return std::none_of(out->begin(), out->end(),
                      [](const SchemaPart& part) { return is_false(*part.schema); });
}

Expr SchemaCompiler::member_value(const ObjectShape& shape, std::string_view name,
                                  SchemaParts parts, const std::string& where, int depth) {
  if (shape.call && json_.tagged() != nullptr) return tagged_value(name, parts, where, depth);
  return parts.empty() ? json_.value() : any(std::move(parts), depth);
}

Expr SchemaCompiler::other_members(const SchemaParts& parts, const ObjectShape& shape, int depth) {
  std::vector<Expr> choices;
  for (uint32_t matched = 0; matched < 1u << shape.patterns.size() && ok(); ++matched) {
    SchemaParts described;
    if (matched == 0 && !shape.others) continue;
    if (!other_parts(parts, shape, matched, &described)) continue;
    const Expr names = other_names(shape, matched);
    if (names == Expressions::kNothing) continue;
    const Expr value =
        member_value(shape, kNoName, std::move(described), parts[0].where, depth + 1);
    choices.push_back(json_.pair(names, value, shape.call));
  }
  return e_.either(std::move(choices));
}

// What is written so far decides whether a comma comes first, and how many members may follow, so
// there is an expression for each place and each count; they are made from the end.
Expr SchemaCompiler::members_in_order(const ObjectShape& shape, Expr other,
                                      const std::string& where) {
  const bool bounded = shape.high != Expressions::kAnyNumber;
  const size_t most = std::max<size_t>(shape.low, bounded ? shape.high : 0);
  const size_t n_counts = std::clamp<size_t>(most, 1, shape.members.size() + 1);
  std::vector<Expr> after(n_counts + 1);  // by the named members so far; the last one: or more
  for (size_t n = 0; n <= n_counts && ok(); ++n) {
    const uint32_t low = shape.low > n ? shape.low - static_cast<uint32_t>(n) : 0;
    const uint32_t high = !bounded          ? shape.high
                          : n >= shape.high ? 0
                                            : shape.high - static_cast<uint32_t>(n);
    const Expr more = json_.then(other, shape.call);
    if (other == Expressions::kNothing || high == 0) {
      after[n] = low == 0 ? Expressions::kEmpty : Expressions::kNothing;
    } else if (n > 0) {
      after[n] = e_.repeat(more, low, high);
    } else {
      const uint32_t rest = high == Expressions::kAnyNumber ? high : high - 1;
      const Expr some = e_.sequence(other, e_.repeat(more, low == 0 ? 0 : low - 1, rest));
      after[n] = low == 0 ? e_.optional(some) : some;
    }
  }
  // Names that nobody names may come twice, and count once.
  size_t n_needed = 0;
  for (const Member& m : shape.members) n_needed += m.required ? 1 : 0;
  if (shape.low > n_needed + 1 && other != Expressions::kNothing) {
    unenforced(where + ".minProperties", "is only supported for members that are named");
  }
  for (size_t i = shape.members.size(); i-- > 0;) {
    const Member& m = shape.members[i];
    std::vector<Expr> here(n_counts + 1);
    for (size_t n = 0; n <= n_counts && ok(); ++n) {
      const bool full = bounded && n >= shape.high;
      const Expr pair = n == 0 ? m.pair : json_.then(m.pair, shape.call);
      const Expr taken =
          full ? Expressions::kNothing : e_.sequence(pair, after[std::min(n + 1, n_counts)]);
      here[n] = m.required ? taken : e_.either({taken, after[n]});
    }
    after = std::move(here);
  }
  return after[0];
}

Expr SchemaCompiler::object(const SchemaParts& parts, int depth) {
  if (Dependency on; next_dependency(parts, &on)) return either_way(parts, on, depth);
  ObjectShape shape;
  if (!ok() || !read_object(parts, &shape)) return Expressions::kNothing;
  for (Member& m : shape.members) {
    const Expr value =
        member_value(shape, m.name, m.parts, parts[0].where + ".properties." + m.name, depth + 1);
    if (!ok()) return Expressions::kNothing;
    const Expr key = json_.key(m.name, shape.call);
    if (key == Expressions::kNothing) {
      return refuse(parts[0].where + ".properties." + m.name,
                    "has a name that this model's calls cannot spell");
    }
    m.pair = json_.pair(key, value, shape.call);
  }
  const Expr other = other_members(parts, shape, depth);
  return json_.braced(members_in_order(shape, other, parts[0].where), shape.call);
}

}  // namespace sharpi::grammar
