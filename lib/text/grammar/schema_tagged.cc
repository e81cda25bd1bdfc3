// SPDX-License-Identifier: MIT
// Arguments that stand between tags. What reads them asks their schemas whether they are texts or
// JSON, so what is written is what is read as a value of the schema.
#include <algorithm>

#include "text/chat_calls.h"
#include "text/grammar/schema_compiler.h"
#include "text/jinja/json.h"

namespace sharpi::grammar {
namespace {

bool may_spell_null(const ArgumentTypes& types) {
  return !types.lists_strings() ||
         std::any_of(types.listed.begin(), types.listed.end(), [](const SchemaValue* value) {
           return value->is_string() && strip_blanks(value->bytes()) == "null";
         });
}

}  // namespace

// A schema that the document does not have: anything but a text, as far as the reader takes it for
// that. Null: it takes everything for a text.
const SchemaValue* SchemaCompiler::other_than_text(const ArgumentTypes& types) {
  jinja::List* list = heap_.list();
  const bool listed = types.lists_strings();
  // A text of the list is what it is, also where it looks like another value.
  const auto looks_like = [&](const SchemaValue& value) {
    return std::any_of(types.listed.begin(), types.listed.end(), [&](const SchemaValue* text) {
      SchemaValue read;
      return text->is_string() &&
             jinja::parse_json(text->bytes(), "a text", &heap_, &read,
                               jinja::JsonNumbers::kAsWritten)
                 .is_ok() &&
             same_json(read, value);
    });
  };
  for (const SchemaValue* value : types.listed) {
    const bool is_null = value->is(jinja::Kind::kNone);
    if (listed && !value->is_string() && (is_null || !looks_like(*value))) {
      list->items.push_back(*value);
    }
  }
  const auto add = [&](bool is, const char* name) {
    if (is && !listed) list->items.push_back(heap_.text(name, false));
  };
  add(types.null, "null");
  add(types.number && !types.string, "number");
  add(types.boolean && !types.string, "boolean");
  add(types.object && !types.string, "object");
  add(types.array && !types.string, "array");
  if (list->items.empty()) return nullptr;
  jinja::Dict* schema = heap_.dict();
  schema->set(heap_.text(listed ? "enum" : "type", false),
              SchemaValue::of(jinja::Kind::kList, list));
  return &kept_.emplace_back(SchemaValue::of(jinja::Kind::kDict, schema));
}

// The same: a text, and where null may stand there, none that is read as null.
const SchemaValue* SchemaCompiler::text_alone(bool or_null) {
  const SchemaValue*& known = added_[or_null ? "a text but null" : "a text"];
  if (known != nullptr) return known;
  jinja::Dict* schema = heap_.dict();
  schema->set(heap_.text("type", false), heap_.text("string", false));
  if (or_null) {
    schema->set(heap_.text("pattern", false),
                heap_.text("^(?![ \\t\\r\\n]*null[ \\t\\r\\n]*$)", false));
  }
  return known = &kept_.emplace_back(SchemaValue::of(jinja::Kind::kDict, schema));
}

Expr SchemaCompiler::tagged_value(std::string_view name, const SchemaParts& parts,
                                  const std::string& where, int depth) {
  const ArgumentTypes types = ToolSchemas::types_of(*document_.root().schema, name);
  std::vector<Expr> choices;
  if (types.string || !types.any()) {
    SchemaParts text = parts;
    text.push_back({text_alone(types.null && may_spell_null(types)), where});
    for (SchemaPart& part : text) part.tagged = true;
    choices.push_back(any(std::move(text), depth));
  }
  if (const SchemaValue* rest = other_than_text(types); rest != nullptr && ok()) {
    SchemaParts json = parts;
    json.push_back({rest, where});
    choices.push_back(json_.closed(any(std::move(json), depth)));
  }
  const Expr out = e_.either(std::move(choices));
  if (out != Expressions::kNothing || !ok() || parts.empty()) return out;
  if (any(parts, depth) == Expressions::kNothing) return out;
  return refuse(where, "has no value that this model's calls can spell");
}

}  // namespace sharpi::grammar
