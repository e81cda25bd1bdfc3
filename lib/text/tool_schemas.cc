// SPDX-License-Identifier: MIT
#include "text/tool_schemas.h"

#include <algorithm>
#include <string>

#include "text/chat_calls.h"
#include "text/grammar/schema_document.h"
#include "text/jinja/json.h"

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr int kMaxSchemaDepth = 16;    // of references and alternatives
constexpr int kMaxSchemasSeen = 4096;  // on the way to what one argument may be

void add_named(std::string_view type, ArgumentTypes* out) {
  out->string |= type == "string";
  out->free_string |= type == "string";
  out->number |= type == "number" || type == "integer";
  out->boolean |= type == "boolean";
  out->null |= type == "null";
  out->array |= type == "array";
  out->object |= type == "object";
}

void add_type_of(const Value& v, ArgumentTypes* out) {
  out->string |= v.is_string();
  out->number |= v.is(Kind::kInt) || v.is(Kind::kFloat) || v.is(Kind::kNumeral);
  out->boolean |= v.is(Kind::kBool);
  out->null |= v.is(Kind::kNone);
  out->array |= v.is(Kind::kList);
  out->object |= v.is(Kind::kDict);
}

const Value* member(const Value& dict, std::string_view key) {
  return dict.is(Kind::kDict) ? dict.dict->find(key) : nullptr;
}

/// One step of a JSON pointer, with its escapes.
std::string unescaped(std::string_view step) {
  std::string out;
  for (size_t i = 0; i < step.size(); ++i) {
    const bool escape = step[i] == '~' && i + 1 < step.size();
    out.push_back(!escape ? step[i] : step[++i] == '1' ? '/' : '~');
  }
  return out;
}

/// What "#/$defs/x" stands for; null: nothing.
const Value* referred(const Value& root, std::string_view reference) {
  if (!reference.starts_with("#")) return nullptr;
  const Value* at = &root;
  reference.remove_prefix(1);
  while (at != nullptr && !reference.empty()) {
    if (reference.front() != '/') return nullptr;
    reference.remove_prefix(1);
    const std::string_view step = reference.substr(0, reference.find('/'));
    reference.remove_prefix(step.size());
    at = member(*at, unescaped(step));
  }
  return at;
}

/// Looks through the schemas of an argument.
class TypesOfArgument {
 public:
  explicit TypesOfArgument(const Value& root) : root_(root) {}

  /// @param parameters a schema of all arguments together.
  void add(const Value& parameters, std::string_view key, int depth, ArgumentTypes* out) {
    if (!enter(parameters, depth)) return;
    const Value* properties = member(parameters, "properties");
    const Value* own = properties != nullptr ? member(*properties, key) : nullptr;
    if (own == nullptr) own = member(parameters, "additionalProperties");
    if (own != nullptr) add_schema(*own, 0, out);
    each_applied(parameters, [&](const Value& part) { add(part, key, depth + 1, out); });
  }

 private:
  bool enter(const Value& schema, int depth) {
    return depth <= kMaxSchemaDepth && schema.is(Kind::kDict) && left_-- > 0;
  }

  template <class Visit>
  bool each_applied(const Value& schema, Visit visit) {
    bool some = false;
    if (const Value* ref = member(schema, "$ref"); ref != nullptr && ref->is_string()) {
      const Value* to = referred(root_, ref->bytes());
      if (to != nullptr) visit(*to);
      some = true;
    }
    for (const char* word : {"anyOf", "oneOf", "allOf"}) {
      const Value* parts = member(schema, word);
      if (parts == nullptr || !parts->is(Kind::kList)) continue;
      for (const Value& part : parts->list->items) visit(part);
      some = true;
    }
    return some;
  }

  void add_schema(const Value& schema, int depth, ArgumentTypes* out) {
    if (!enter(schema, depth)) return;
    const bool said = add_listed(schema, out) || add_types(schema, out);
    const bool more =
        each_applied(schema, [&](const Value& part) { add_schema(part, depth + 1, out); });
    if (!said && !more) add_meant(schema, out);
  }

  static bool add_listed(const Value& schema, ArgumentTypes* out) {
    const Value *only = member(schema, "const"), *values = member(schema, "enum");
    if (only != nullptr) {
      out->listed.push_back(only);
    } else if (values != nullptr && values->is(Kind::kList)) {
      for (const Value& v : values->list->items) out->listed.push_back(&v);
    } else {
      return false;
    }
    if (only != nullptr) add_type_of(*only, out);
    for (size_t i = 0; only == nullptr && i < values->list->items.size(); ++i) {
      add_type_of(values->list->items[i], out);
    }
    return true;
  }

  static bool add_types(const Value& schema, ArgumentTypes* out) {
    const Value* type = member(schema, "type");
    const Value* nullable = member(schema, "nullable");
    out->null |= nullable != nullptr && jinja::truthy(*nullable);
    if (type == nullptr) return false;
    if (type->is_string()) add_named(type->bytes(), out);
    for (size_t i = 0; type->is(Kind::kList) && i < type->list->items.size(); ++i) {
      if (type->list->items[i].is_string()) add_named(type->list->items[i].bytes(), out);
    }
    return true;
  }

  /// Where no type is said, keywords about one type mean it.
  static void add_meant(const Value& schema, ArgumentTypes* out) {
    static constexpr std::pair<const char*, const char*> kMeant[] = {
        {"properties", "object"},
        {"required", "object"},
        {"additionalProperties", "object"},
        {"items", "array"},
        {"minItems", "array"},
        {"maxItems", "array"},
        {"prefixItems", "array"},
        {"minimum", "number"},
        {"maximum", "number"},
        {"exclusiveMinimum", "number"},
        {"exclusiveMaximum", "number"},
        {"multipleOf", "number"},
        {"minLength", "string"},
        {"maxLength", "string"},
        {"pattern", "string"},
        {"format", "string"}};
    for (const auto& [word, type] : kMeant) {
      if (member(schema, word) != nullptr) add_named(type, out);
    }
  }

  const Value& root_;
  int left_ = kMaxSchemasSeen;
};

/// Words that templates print in place of JSON's, as Python spells them.
bool read_word(std::string_view text, const ArgumentTypes& types, Value* out) {
  if (types.boolean && (text == "True" || text == "False")) {
    *out = Value::of(text == "True");
    return true;
  }
  *out = Value::none();
  return types.null && text == "None";
}

/// The value that the text is, of those that are listed. False: none of them.
bool read_listed(std::string_view text, std::string_view word, const ArgumentTypes& types,
                 Heap* heap, Value* out) {
  const auto& listed = types.listed;
  const bool is_listed = std::any_of(listed.begin(), listed.end(), [&](const Value* v) {
    return v->is_string() && v->bytes() == text;
  });
  if (is_listed || !types.lists_strings()) return false;
  Value value;
  if (!jinja::parse_json(word, "an argument", heap, &value, jinja::JsonNumbers::kAsWritten)
           .is_ok() &&
      !read_word(word, types, &value)) {
    return false;
  }
  *out = value;
  return std::any_of(listed.begin(), listed.end(), [&](const Value* v) {
    return !v->is_string() && grammar::same_json(*v, value);
  });
}

}  // namespace

bool ArgumentTypes::allow(const Value& value) const {
  ArgumentTypes of;
  add_type_of(value, &of);
  return (of.number && number) || (of.boolean && boolean) || (of.null && null) ||
         (of.array && array) || (of.object && object);
}

Status ToolSchemas::read(std::string_view json, Heap* heap, ToolSchemas* out) {
  if (json.data() == nullptr) return Status::ok();
  Value list;
  SHARPI_TRY(jinja::parse_json(json, "tools", heap, &list, jinja::JsonNumbers::kAsWritten));
  if (!list.is(Kind::kList)) {
    return Status::error(Code::kInvalidArgument, "tools is not a JSON array");
  }
  for (const Value& tool : list.list->items) {
    const Value* inner = member(tool, "function");
    const Value& function = inner != nullptr ? *inner : tool;
    const Value* name = member(function, "name");
    if (name == nullptr || !name->is_string()) {
      return Status::error(Code::kInvalidArgument, "a tool has no name");
    }
    out->tools_.emplace_back(name->bytes(), member(function, "parameters"));
  }
  return Status::ok();
}

bool ToolSchemas::knows(std::string_view tool) const {
  for (const auto& [name, parameters] : tools_) {
    if (name == tool) return true;
  }
  return false;
}

ArgumentTypes ToolSchemas::types_of(const Value& parameters, std::string_view key) {
  ArgumentTypes out;
  TypesOfArgument(parameters).add(parameters, key, 0, &out);
  return out;
}

ArgumentTypes ToolSchemas::types(std::string_view tool, std::string_view key) const {
  for (const auto& [name, parameters] : tools_) {
    if (name == tool && parameters != nullptr) return types_of(*parameters, key);
  }
  return {};
}

Value ToolSchemas::typed(std::string_view tool, std::string_view key, std::string_view text,
                         Heap* heap, const Value* spelled) const {
  const ArgumentTypes types = this->types(tool, key);
  if (spelled != nullptr && (!types.any() || types.allow(*spelled))) return *spelled;
  const std::string_view word = strip_blanks(text);
  if (types.string && types.null && word == "null") return Value::none();
  Value value;
  if (types.string || !types.any()) {
    return read_listed(text, word, types, heap, &value) ? value : heap->text(text, true);
  }
  if (read_word(word, types, &value)) return value;
  const bool json =
      jinja::parse_json(word, "an argument", heap, &value, jinja::JsonNumbers::kAsWritten).is_ok();
  return json && types.allow(value) ? value : heap->text(text, true);
}

}  // namespace sharpi
