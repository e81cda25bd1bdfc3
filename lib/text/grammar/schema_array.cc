// SPDX-License-Identifier: MIT
#include <algorithm>
#include <bit>
#include <functional>

#include "text/grammar/schema_compiler.h"

namespace sharpi::grammar {
namespace {

constexpr size_t kMaxDistinct = 12;  // values of an enum whose items differ from each other
constexpr size_t kMaxPlaces = 4096;  // of prefixItems

struct ArrayShape {
  std::vector<SchemaParts> places;  // of prefixItems
  SchemaParts rest;
  bool has_rest = false;  // items behind them were asked for
  bool distinct = false;
  uint32_t low = 0, high = Expressions::kAnyNumber;
};

struct PartItems {
  const SchemaValue* prefix = nullptr;  // a list
  const SchemaValue* rest = nullptr;    // a schema
  const char* rest_name = "items";
};

// Drafts before 2020-12 say items and additionalItems for prefixItems and items.
PartItems items_of(const SchemaPart& part) {
  PartItems out;
  out.prefix = member(*part.schema, "prefixItems");
  out.rest = member(*part.schema, "items");
  if (out.rest != nullptr && is_list(*out.rest)) {
    out.prefix = out.rest;
    out.rest_name = "additionalItems";
    out.rest = member(*part.schema, out.rest_name);
  }
  return out;
}

void read_items(const SchemaParts& parts, ArrayShape* out) {
  size_t n = 0;
  for (const SchemaPart& part : parts) {
    const PartItems items = items_of(part);
    const bool listed = items.prefix != nullptr && is_list(*items.prefix);
    if (listed) n = std::max(n, items.prefix->list->items.size());
    const SchemaValue* unseen = member(*part.schema, "unevaluatedItems");
    out->has_rest |= items.rest != nullptr || (unseen != nullptr && !is_false(*unseen));
    const SchemaValue* distinct = member(*part.schema, "uniqueItems");
    out->distinct |= distinct != nullptr && distinct->is(jinja::Kind::kBool) && distinct->boolean;
  }
  n = std::min(n, kMaxPlaces);
  out->has_rest |= n == 0;
  out->places.resize(n);
  std::vector<std::vector<bool>> describes(n + 1, std::vector<bool>(parts.size()));
  for (size_t k = 0; k < parts.size(); ++k) {
    const SchemaPart& part = parts[k];
    const PartItems items = items_of(part);
    const size_t own =
        items.prefix != nullptr && is_list(*items.prefix) ? items.prefix->list->items.size() : 0;
    const SchemaPart rest{items.rest, part.where + "." + items.rest_name};
    for (size_t i = 0; i <= n; ++i) describes[i][k] = i < own || items.rest != nullptr;
    for (size_t i = 0; i < n; ++i) {
      if (i < own) {
        out->places[i].push_back({&items.prefix->list->items[i],
                                  part.where + ".prefixItems[" + std::to_string(i) + "]"});
      } else if (items.rest != nullptr) {
        out->places[i].push_back(rest);
      }
    }
    if (items.rest != nullptr) out->rest.push_back(rest);
  }
  for (size_t i = 0; i <= n; ++i) {
    add_unevaluated(parts, "unevaluatedItems", describes[i], i < n ? &out->places[i] : &out->rest);
  }
}

}  // namespace

// The values of a schema that lists them all; false: it does not.
bool SchemaCompiler::listed_values(const SchemaParts& parts, std::vector<SchemaValue>* out) {
  SchemaParts flat;
  std::vector<const SchemaValue*> open;
  bool referred = false;
  for (const SchemaPart& part : parts) {
    if (!flatten(part, &flat, &open, &referred)) return false;
  }
  const Types types = types_of(flat);
  std::vector<SchemaValue> all;
  for (const SchemaPart& part : flat) {
    if (member(*part.schema, "anyOf") != nullptr || member(*part.schema, "oneOf") != nullptr) {
      return false;
    }
    const SchemaValue* list = member(*part.schema, "enum");
    if (list != nullptr && is_list(*list)) all = list->list->items;
    if (const SchemaValue* one = member(*part.schema, "const")) all.assign(1, *one);
  }
  if (all.empty() && (types & ~(kBoolean | kNull)) == 0) {
    all = {SchemaValue::of(true), SchemaValue::of(false), SchemaValue::none()};
  }
  for (const SchemaValue& value : all) {
    const bool is_new = std::none_of(out->begin(), out->end(), [&](const SchemaValue& other) {
      return same_json(value, other);
    });
    if (is_new && allows(flat, types, value)) out->push_back(value);
  }
  return !all.empty() && out->size() <= kMaxDistinct;
}

// Items that differ: an expression for each set of values that came before.
Expr SchemaCompiler::distinct_items(const std::vector<SchemaValue>& values, uint32_t low,
                                    uint32_t high) {
  std::vector<Expr> items;
  for (const SchemaValue& value : values) items.push_back(json_.literal(value));
  std::vector<Expr> behind(size_t{1} << values.size(), Expressions::kNothing);
  for (size_t used = behind.size(); used-- > 0 && ok();) {
    const auto n = static_cast<uint32_t>(std::popcount(used));
    std::vector<Expr> choices;
    if (n >= low) choices.push_back(Expressions::kEmpty);
    for (size_t i = 0; i < values.size() && n < high; ++i) {
      if ((used >> i & 1) != 0) continue;
      const Expr item = n == 0 ? items[i] : json_.then(items[i]);
      choices.push_back(e_.sequence(item, behind[used | size_t{1} << i]));
    }
    behind[used] = e_.either(std::move(choices));
  }
  return json_.bracketed(behind[0]);
}

Expr SchemaCompiler::array(const SchemaParts& parts, int depth) {
  ArrayShape shape;
  for (const SchemaPart& part : parts) {
    count(part, "minItems", &shape.low);
    count(part, "maxItems", &shape.high);
  }
  read_items(parts, &shape);
  if (!ok()) return Expressions::kNothing;
  if (shape.distinct && shape.high > 1) {
    std::vector<SchemaValue> values;
    if (shape.places.empty() && listed_values(shape.rest, &values)) {
      return distinct_items(values, shape.low, shape.high);
    }
    unenforced(parts[0].where + ".uniqueItems",
               "cannot be enforced while a text is written, but for the items of a short enum");
  }
  const auto n = static_cast<uint32_t>(shape.places.size());
  Expr rest = Expressions::kNothing;
  if (shape.has_rest || shape.low > n) {
    rest = shape.rest.empty() ? json_.value() : any(shape.rest, depth + 1);
  }
  // Without `items` there are no more behind the prefix than have to be.
  const uint32_t most = shape.has_rest ? shape.high : std::min(shape.high, std::max(n, shape.low));
  if (n == 0) {
    return shape.low > most ? Expressions::kNothing : json_.list(rest, shape.low, most);
  }
  Expr behind = Expressions::kEmpty;
  if (most > n) {
    const uint32_t left = most == Expressions::kAnyNumber ? most : most - n;
    behind = e_.repeat(json_.then(rest), shape.low > n ? shape.low - n : 0, left);
  } else if (shape.low > most) {
    return Expressions::kNothing;
  }
  for (uint32_t i = std::min(n, most); i-- > 0;) {
    const Expr item = any(shape.places[i], depth + 1);
    const Expr some = e_.sequence(i == 0 ? item : json_.then(item), behind);
    behind = i >= shape.low ? e_.optional(some) : some;
    if (!ok()) return Expressions::kNothing;
  }
  return json_.bracketed(behind);
}

}  // namespace sharpi::grammar
