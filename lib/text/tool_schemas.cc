// SPDX-License-Identifier: MIT
#include "text/tool_schemas.h"

#include <string>

#include "text/chat_calls.h"
#include "text/jinja/json.h"

namespace sharpi {
namespace {

using jinja::Heap;
using jinja::Kind;
using jinja::Value;

constexpr int kMaxSchemaDepth = 16;  // of references and alternatives

/// Types that a schema lets a value have; none: it says nothing.
struct Types {
  bool string = false, number = false, boolean = false, null = false, array = false, object = false;
  bool any() const { return string || number || boolean || null || array || object; }

  void add(std::string_view name) {
    string = string || name == "string";
    number = number || name == "number" || name == "integer";
    boolean = boolean || name == "boolean";
    null = null || name == "null";
    array = array || name == "array";
    object = object || name == "object";
  }
  void add_type_of(const Value& v) {
    string = string || v.is_string();
    number = number || v.is(Kind::kInt) || v.is(Kind::kFloat) || v.is(Kind::kNumeral);
    boolean = boolean || v.is(Kind::kBool);
    null = null || v.is(Kind::kNone);
    array = array || v.is(Kind::kList);
    object = object || v.is(Kind::kDict);
  }
  bool allow(const Value& v) const {
    Types of;
    of.add_type_of(v);
    return (of.number && number) || (of.boolean && boolean) || (of.null && null) ||
           (of.array && array) || (of.object && object);
  }
};

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

void collect(const Value& root, const Value& schema, int depth, Types* out) {
  if (depth > kMaxSchemaDepth || !schema.is(Kind::kDict)) return;
  if (const Value* ref = member(schema, "$ref"); ref != nullptr && ref->is_string()) {
    if (const Value* to = referred(root, ref->bytes())) collect(root, *to, depth + 1, out);
  }
  if (const Value* type = member(schema, "type")) {
    if (type->is_string()) out->add(type->bytes());
    for (size_t i = 0; type->is(Kind::kList) && i < type->list->items.size(); ++i) {
      if (type->list->items[i].is_string()) out->add(type->list->items[i].bytes());
    }
  }
  if (const Value* nullable = member(schema, "nullable")) out->null |= jinja::truthy(*nullable);
  if (const Value* only = member(schema, "const")) out->add_type_of(*only);
  if (const Value* values = member(schema, "enum"); values != nullptr && values->is(Kind::kList)) {
    for (const Value& v : values->list->items) out->add_type_of(v);
  }
  for (const char* key : {"anyOf", "oneOf", "allOf"}) {
    const Value* parts = member(schema, key);
    if (parts == nullptr || !parts->is(Kind::kList)) continue;
    for (const Value& part : parts->list->items) collect(root, part, depth + 1, out);
  }
}

/// The schema of one argument; null: there is none.
const Value* schema_of(const Value& parameters, std::string_view key) {
  const Value* properties = member(parameters, "properties");
  const Value* own = properties != nullptr ? member(*properties, key) : nullptr;
  return own != nullptr ? own : member(parameters, "additionalProperties");
}

/// Words that templates print in place of JSON's, as Python spells them.
bool read_word(std::string_view text, const Types& types, Value* out) {
  if (types.boolean && (text == "True" || text == "False")) {
    *out = Value::of(text == "True");
    return true;
  }
  *out = Value::none();
  return types.null && text == "None";
}

}  // namespace

Status ToolSchemas::read(std::string_view json, Heap* heap, ToolSchemas* out) {
  if (json.data() == nullptr) return Status::ok();
  Value list;
  SHARPI_TRY(jinja::parse_json(json, "tools", heap, &list));
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

Value ToolSchemas::typed(std::string_view tool, std::string_view key, std::string_view text,
                         Heap* heap, const Value* spelled) const {
  Types types;
  for (const auto& [name, parameters] : tools_) {
    if (name != tool || parameters == nullptr) continue;
    if (const Value* schema = schema_of(*parameters, key)) collect(*parameters, *schema, 0, &types);
    break;
  }
  if (spelled != nullptr && (!types.any() || types.allow(*spelled))) return *spelled;
  const std::string_view word = strip_blanks(text);
  if (types.string && types.null && word == "null") return Value::none();
  Value value;
  if (types.string || !types.any()) return heap->text(text, true);
  if (read_word(word, types, &value)) return value;
  const bool json =
      jinja::parse_json(word, "an argument", heap, &value, jinja::JsonNumbers::kAsWritten).is_ok();
  return json && types.allow(value) ? value : heap->text(text, true);
}

}  // namespace sharpi
