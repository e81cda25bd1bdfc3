// SPDX-License-Identifier: MIT
#include "json_schema.h"

#include <algorithm>
#include <deque>
#include <set>

#include "sse.h"

namespace server {
namespace {

constexpr size_t kMaxName = 256;
// Schemas, values, names and types in all. Expressions have the same bound, but those that say the
// same again are one and the same expression.
constexpr size_t kMaxParts = Grammar::kMaxNodes;

// What says something about the values of one type, and nothing about others.
const std::map<std::string, std::vector<std::string>> kKeywords = {
    {"object", {"properties", "required", "additionalProperties"}},
    {"array", {"items", "minItems", "maxItems"}},
    {"string", {"minLength", "maxLength"}}};

const char* const kAnnotations[] = {"title",    "description", "default",  "examples",
                                    "$schema",  "$id",         "$comment", "deprecated",
                                    "readOnly", "writeOnly",   "$defs",    "definitions"};

using Names = std::set<std::string>;
const Names kTypes = {"object", "array", "string", "number", "integer", "boolean", "null"};

class Compiler {
 public:
  Compiler(Grammar& grammar, JsonGrammar& parts, const json& root, std::string where)
      : g_(grammar), parts_(parts), root_(root), root_where_(std::move(where)) {}

  Expr whole();

 private:
  // What was referred to and is not compiled yet. Each is compiled by itself, not where it was
  // first met: chains of references are as long as somebody likes, and calls within calls are not.
  struct Definition {
    Expr rule;
    const json* schema;
    std::string where;
  };
  Expr any(const json& schema, const std::string& where);
  [[noreturn]] static void refuse(const std::string& where, const std::string& what) {
    throw RequestError(400, where + " " + what, where, "unsupported_schema");
  }
  static void only(const json& schema, const std::string& where, const Names& allowed);
  // These are all that may be there.
  static void only_of_types(const json& schema, const std::string& where, const Names& types);
  void count_parts(size_t n);
  Expr reference(const json& schema, const std::string& where);
  Expr one_of(const json& schema, const std::string& where);
  Expr values(const json& schema, const std::string& where);
  Expr typed(const json& schema, const std::string& where);
  Expr of_type(const std::string& type, const json& schema, const std::string& where);
  Expr object(const json& schema, const std::string& where);
  Expr array(const json& schema, const std::string& where);
  Expr string(const json& schema, const std::string& where);
  Names required(const json& schema, const std::string& where);
  static uint32_t count(const json& schema, const char* name, uint32_t otherwise,
                        const std::string& where);
  std::vector<std::string> types_of(const json& schema, const std::string& where);

  Grammar& g_;
  JsonGrammar& parts_;
  const json& root_;
  const std::string root_where_;
  size_t n_parts_ = 0;
  std::map<std::string, Expr> rules_;
  std::deque<Definition> to_do_;
};

// Beside annotations only these keywords may stand in the schema.
void Compiler::only(const json& schema, const std::string& where, const Names& allowed) {
  for (const auto& [name, value] : schema.items()) {
    const bool annotation =
        std::find(std::begin(kAnnotations), std::end(kAnnotations), name) != std::end(kAnnotations);
    if (!annotation && !allowed.contains(name)) {
      refuse(where + "." + name, "is not supported here");
    }
  }
}

Expr Compiler::whole() {
  const Expr out = any(root_, root_where_);
  for (; !to_do_.empty(); to_do_.pop_front()) {
    const Definition& next = to_do_.front();
    g_.define(next.rule, any(*next.schema, next.where));
  }
  return out;
}

void Compiler::only_of_types(const json& schema, const std::string& where, const Names& types) {
  Names allowed = {"type"};
  for (const std::string& type : types) {
    const auto found = kKeywords.find(type);
    if (found != kKeywords.end()) allowed.insert(found->second.begin(), found->second.end());
  }
  only(schema, where, allowed);
}

void Compiler::count_parts(size_t n) {
  n_parts_ += n;
  if (n_parts_ > kMaxParts) throw std::length_error("too many parts");
}

Expr Compiler::any(const json& schema, const std::string& where) {
  count_parts(1);
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) refuse(where, "is false: nothing would match");
    return parts_.value();
  }
  if (!schema.is_object()) refuse(where, "is not a schema");
  if (schema.contains("$ref")) return reference(schema, where);
  if (schema.contains("anyOf")) return one_of(schema, where);
  if (schema.contains("enum") || schema.contains("const")) return values(schema, where);
  return typed(schema, where);
}

Expr Compiler::reference(const json& schema, const std::string& where) {
  only(schema, where, {"$ref"});
  const json& target = schema["$ref"];
  const std::string name = target.is_string() ? target.get<std::string>() : "";
  const auto known = rules_.find(name);
  if (known != rules_.end()) return known->second;
  const json* found = nullptr;
  for (const std::string folder : {"$defs", "definitions"}) {
    const std::string prefix = "#/" + folder + "/";
    if (!name.starts_with(prefix) || !root_.contains(folder)) continue;
    const auto entry = root_[folder].find(name.substr(prefix.size()));
    if (entry != root_[folder].end()) found = &*entry;
  }
  if (name == "#") found = &root_;
  if (found == nullptr) refuse(where + ".$ref", "is not \"#\" or an entry of #/$defs");
  const Expr rule = g_.rule();
  rules_[name] = rule;
  to_do_.push_back({rule, found, root_where_ + name.substr(1)});
  return rule;
}

Expr Compiler::one_of(const json& schema, const std::string& where) {
  only(schema, where, {"anyOf"});
  const json& list = schema["anyOf"];
  if (!list.is_array() || list.empty()) refuse(where + ".anyOf", "is not a list of schemas");
  std::vector<Expr> choices;
  for (size_t i = 0; i < list.size(); ++i) {
    choices.push_back(any(list[i], where + ".anyOf[" + std::to_string(i) + "]"));
  }
  return g_.either(choices);
}

bool has_type(const json& value, const std::string& type) {
  return (type == "string" && value.is_string()) || (type == "boolean" && value.is_boolean()) ||
         (type == "null" && value.is_null()) || (type == "number" && value.is_number()) ||
         (type == "integer" && value.is_number_integer()) ||
         (type == "object" && value.is_object()) || (type == "array" && value.is_array());
}

Expr Compiler::values(const json& schema, const std::string& where) {
  only(schema, where, {"enum", "const", "type"});
  const json list = schema.contains("const") ? json::array({schema["const"]}) : schema["enum"];
  if (schema.contains("const") && schema.contains("enum")) {
    refuse(where + ".const", "is not supported beside enum");
  }
  if (!list.is_array() || list.empty()) refuse(where + ".enum", "is not a list of values");
  count_parts(list.size());
  const bool is_typed = schema.contains("type");
  const std::vector<std::string> types =
      is_typed ? types_of(schema, where) : std::vector<std::string>();
  std::vector<Expr> choices;
  for (const json& value : list) {
    const bool fits = !is_typed || std::any_of(types.begin(), types.end(), [&](const auto& type) {
      return has_type(value, type);
    });
    if (fits) choices.push_back(parts_.literal(value));
  }
  if (choices.empty()) refuse(where + ".enum", "has no value of the type");
  return g_.either(choices);
}

// Each once, in the order of the schema.
std::vector<std::string> Compiler::types_of(const json& schema, const std::string& where) {
  const json& type = schema["type"];
  const json list = type.is_array() ? type : json::array({type});
  count_parts(list.size());
  std::vector<std::string> out;
  for (const json& name : list) {
    if (!name.is_string() || !kTypes.contains(name.get<std::string>())) {
      refuse(where + ".type", "is not a JSON type or a list of them");
    }
    if (std::find(out.begin(), out.end(), name) == out.end()) out.push_back(name);
  }
  if (out.empty()) refuse(where + ".type", "is empty");
  return out;
}

Expr Compiler::typed(const json& schema, const std::string& where) {
  if (schema.contains("type")) {
    const std::vector<std::string> types = types_of(schema, where);
    only_of_types(schema, where, {types.begin(), types.end()});
    std::vector<Expr> choices;
    for (const std::string& type : types) choices.push_back(of_type(type, schema, where));
    return g_.either(choices);
  }
  for (const auto& [keyword, type] : {std::pair("properties", "object"), {"items", "array"}}) {
    if (!schema.contains(keyword)) continue;
    only_of_types(schema, where, {type});
    return of_type(type, schema, where);
  }
  only(schema, where, {});
  return parts_.value();
}

Expr Compiler::of_type(const std::string& type, const json& schema, const std::string& where) {
  if (type == "object") return object(schema, where);
  if (type == "array") return array(schema, where);
  if (type == "string") return string(schema, where);
  if (type == "number") return parts_.number();
  if (type == "integer") return parts_.integer();
  return type == "boolean" ? parts_.boolean() : parts_.null();
}

uint32_t Compiler::count(const json& schema, const char* name, uint32_t otherwise,
                         const std::string& where) {
  const auto found = schema.find(name);
  if (found == schema.end()) return otherwise;
  if (!found->is_number_unsigned() || found->get<uint64_t>() > 0x7FFFFFFF) {
    refuse(where + "." + name, "is not a whole number from 0 to 2147483647");
  }
  return found->get<uint32_t>();
}

Expr Compiler::string(const json& schema, const std::string& where) {
  const uint32_t low = count(schema, "minLength", 0, where);
  const uint32_t high = count(schema, "maxLength", Grammar::kAnyNumber, where);
  if (low > high) refuse(where + ".minLength", "is more than maxLength");
  return parts_.string_of_length(low, high);
}

Expr Compiler::array(const json& schema, const std::string& where) {
  const uint32_t low = count(schema, "minItems", 0, where);
  const uint32_t high = count(schema, "maxItems", Grammar::kAnyNumber, where);
  if (low > high) refuse(where + ".minItems", "is more than maxItems");
  const Expr item =
      schema.contains("items") ? any(schema["items"], where + ".items") : parts_.value();
  return parts_.list(item, low, high);
}

Names Compiler::required(const json& schema, const std::string& where) {
  Names out;
  const auto list = schema.find("required");
  if (list == schema.end()) return out;
  if (!list->is_array()) refuse(where + ".required", "is not a list");
  count_parts(list->size());
  Names described;
  if (schema.contains("properties")) {
    for (const auto& [name, value] : schema["properties"].items()) described.insert(name);
  }
  for (const json& name : *list) {
    if (!name.is_string() || !described.contains(name.get<std::string>())) {
      refuse(where + ".required", "has " + dump(name) + ", which properties does not describe");
    }
    out.insert(name.get<std::string>());
  }
  return out;
}

// Properties come in the order of the schema, then others. What is written so far decides whether
// a comma comes first, so each place has two expressions; they are made from the end.
Expr Compiler::object(const json& schema, const std::string& where) {
  const json none = json::object(), anything = true;
  const json& properties = schema.contains("properties") ? schema["properties"] : none;
  if (!properties.is_object()) refuse(where + ".properties", "is not an object");
  const Names must = required(schema, where);
  std::vector<std::string> names;
  for (const auto& [name, value] : properties.items()) {
    if (name.size() > kMaxName) refuse(where + ".properties", "has a name of more than 256 bytes");
    names.push_back(name);
  }
  const json& others =
      schema.contains("additionalProperties") ? schema["additionalProperties"] : anything;
  const Expr comma = g_.sequence({g_.byte(','), parts_.blank()});
  Expr first = g_.empty(), later = g_.empty();
  if (others != json(false)) {
    const Expr pair =
        parts_.pair(parts_.other_key(names), any(others, where + ".additionalProperties"));
    later = g_.repeat(g_.sequence({comma, pair}), 0, Grammar::kAnyNumber);
    first = g_.optional(g_.sequence({pair, later}));
  }
  for (size_t i = names.size(); i-- > 0;) {
    const Expr value = any(properties[names[i]], where + ".properties." + names[i]);
    const Expr pair = parts_.pair(parts_.literal(names[i]), value);
    const Expr here = g_.sequence({pair, later}), here_later = g_.sequence({comma, pair, later});
    const bool needed = must.contains(names[i]);
    first = needed ? here : g_.either({here, first});
    later = needed ? here_later : g_.either({here_later, later});
  }
  return g_.sequence({g_.byte('{'), parts_.blank(), first, parts_.blank(), g_.byte('}')});
}

}  // namespace

Expr schema_grammar(Grammar& grammar, JsonGrammar& parts, const json& schema,
                    const std::string& where) {
  Expr out = 0;
  try {
    out = Compiler(grammar, parts, schema, where).whole();
  } catch (const std::length_error&) {
    throw RequestError(400, where + " is too large", where, "unsupported_schema");
  }
  if (!grammar.settle(out)) {
    throw RequestError(400, where + " matches nothing: it contains itself without an end", where,
                       "unsupported_schema");
  }
  return out;
}

}  // namespace server
