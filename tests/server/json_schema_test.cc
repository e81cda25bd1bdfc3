// SPDX-License-Identifier: MIT
// Grammars of JSON schemas: what they let through, and that every walk through them is valid JSON
// that keeps to the schema, judged by a validator that shares nothing with them.
#include "json_schema.h"

#include <gtest/gtest.h>

#include <random>

#include "compiled_schema.h"

namespace server {
namespace {

const json& resolve(const json& schema, const json& root) {
  if (!schema.is_object() || !schema.contains("$ref")) return schema;
  const auto name = schema["$ref"].get<std::string>();
  return name == "#" ? root : root["$defs"][name.substr(8)];
}

bool is_of(const json& value, const std::string& type) {
  return type == "object"    ? value.is_object()
         : type == "array"   ? value.is_array()
         : type == "string"  ? value.is_string()
         : type == "number"  ? value.is_number()
         : type == "integer" ? value.is_number_integer()
         : type == "boolean" ? value.is_boolean()
                             : value.is_null();
}

size_t characters(const std::string& text) {
  size_t n = 0;
  for (const char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return n;
}

bool is_valid(const json& value, const json& given, const json& root) {
  const json& schema = resolve(given, root);
  if (!schema.is_object()) return true;
  if (schema.contains("anyOf")) {
    for (const json& choice : schema["anyOf"]) {
      if (is_valid(value, choice, root)) return true;
    }
    return false;
  }
  if (schema.contains("const") && value != schema["const"]) return false;
  if (schema.contains("enum")) {
    const json& list = schema["enum"];
    if (std::find(list.begin(), list.end(), value) == list.end()) return false;
  }
  if (schema.contains("type")) {
    const json& types = schema["type"];
    bool fits = false;
    for (const json& type : types.is_array() ? types : json::array({types})) {
      fits = fits || is_of(value, type.get<std::string>());
    }
    if (!fits) return false;
  }
  if (value.is_object()) {
    for (const json& name : schema.value("required", json::array())) {
      if (!value.contains(name.get<std::string>())) return false;
    }
    const json properties = schema.value("properties", json::object());
    const json others = schema.value("additionalProperties", json(true));
    for (const auto& [name, member] : value.items()) {
      if (properties.contains(name) ? !is_valid(member, properties[name], root)
                                    : others == json(false) || !is_valid(member, others, root)) {
        return false;
      }
    }
  }
  if (value.is_array()) {
    if (value.size() < schema.value("minItems", size_t{0})) return false;
    if (value.size() > schema.value("maxItems", size_t{1} << 30)) return false;
    for (const json& item : value) {
      if (!is_valid(item, schema.value("items", json(true)), root)) return false;
    }
  }
  if (value.is_string()) {
    const size_t n = characters(value.get<std::string>());
    if (n < schema.value("minLength", size_t{0})) return false;
    if (n > schema.value("maxLength", size_t{1} << 30)) return false;
  }
  return true;
}

const char* const kSchemas[] = {
    R"({})",
    R"(true)",
    R"({"type": "object"})",
    R"({"type": "string"})",
    R"({"type": "string", "minLength": 2, "maxLength": 5})",
    R"({"type": "number"})",
    R"({"type": "integer"})",
    R"({"type": ["integer", "null", "boolean"]})",
    R"({"type": ["string", "array"], "maxLength": 3, "items": {"type": "null"}, "maxItems": 2})",
    R"({"enum": ["a", 1, null, true, {"x": [1, 2]}, "\u00e9\"\\"]})",
    R"({"const": {"deep": [{"er": "\n"}]}})",
    R"({"type": "string", "enum": ["red", "green", 5]})",
    R"({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4})",
    R"({"type": "array", "maxItems": 0})",
    R"({"type": "array"})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"},
        "c": {"type": "boolean"}}, "required": ["b"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"z": {"const": 1}, "a": {"const": 2}},
        "required": ["z", "a"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"ab": {"type": "integer"}, "abc": {"type": "null"},
        "\u00fcber": {"type": "null"}}, "additionalProperties": {"type": "boolean"}})",
    R"({"type": "object", "properties": {"\u00fc": {"type": "integer"}, "\u20ac": {"type": "null"},
        "q\"": {"type": "null"}}, "additionalProperties": {"type": "boolean"}})",
    R"({"type": "object", "additionalProperties": {"type": "array",
        "items": {"type": "integer"}}})",
    R"({"properties": {"a": {"items": {"type": "null"}}}, "required": ["a"]})",
    R"({"anyOf": [{"type": "null"}, {"type": "object", "properties": {"k": {"enum": [1, 2]}},
        "required": ["k"], "additionalProperties": false}, {"type": "array",
        "items": {"type": "integer"}}]})",
    R"({"type": "object", "properties": {"value": {"type": "integer"},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["value", "next"],
        "additionalProperties": false})",
    R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 3}, "children": {"type": "array",
        "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "required": ["name", "children"],
        "additionalProperties": false}}})",
    R"({"title": "Person", "description": "annotations do nothing", "type": "object",
        "properties": {"name": {"title": "Name", "type": "string", "default": "x"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": []}},
        "required": ["name"]})",
};

// A random text of the schema. Where it gets long, bytes that end things are preferred.
std::string random_text(Matcher& matcher, std::mt19937& random) {
  std::string out;
  Matcher::State state = matcher.start();
  while (out.size() < 5000) {
    std::vector<unsigned char> next, ends;
    for (int byte = 0; byte < 256; ++byte) {
      const auto b = static_cast<unsigned char>(byte);
      if (matcher.step(state, b) == Matcher::kDead) continue;
      next.push_back(b);
      if (std::string("\"}]ntf1").find(static_cast<char>(b)) != std::string::npos) {
        ends.push_back(b);
      }
    }
    if (matcher.accepts(state) && (next.empty() || random() % 4 == 0 || out.size() > 60)) {
      return out;
    }
    const auto& from = out.size() > 60 && !ends.empty() ? ends : next;
    out += static_cast<char>(from[random() % from.size()]);
    state = matcher.step(state, static_cast<unsigned char>(out.back()));
    state = matcher.tidy(state);
  }
  return out;
}

TEST(JsonSchema, EveryRandomWalkIsValid) {
  std::mt19937 random(7);
  for (const char* schema : kSchemas) {
    SCOPED_TRACE(schema);
    Compiled c(schema);
    const json parsed = json::parse(schema);
    int ended = 0;
    for (int i = 0; i < 60; ++i) {
      const std::string text = random_text(*c.matcher, random);
      if (text.size() >= 5000) continue;  // nested without an end: no fault, and no JSON yet
      ++ended;
      const json value = json::parse(text, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text;
      ASSERT_TRUE(is_valid(value, parsed, parsed)) << text;
    }
    EXPECT_GT(ended, 40);
  }
}

TEST(JsonSchema, WhatIsValidIsAllowedInItsUsualForms) {
  Compiled c(kSchemas[15]);
  EXPECT_TRUE(c.allows(R"({"b":"x"})"));
  EXPECT_TRUE(c.allows(R"({"a": 1, "b": "x", "c": true})"));
  EXPECT_TRUE(c.allows("{\n  \"a\": -12,\n  \"b\": \"\\u00e9\\n\"\n}"));
  EXPECT_FALSE(c.allows(R"({"a": 1})")) << "b is required";
  EXPECT_FALSE(c.allows(R"({"b": "x", "a": 1})")) << "the order is the schema's";
  EXPECT_FALSE(c.allows(R"({"b": "x", "d": 1})")) << "no other members";
  EXPECT_FALSE(c.allows(R"({"b": "x",})"));
  EXPECT_FALSE(c.allows(R"({"a": 1.5, "b": "x"})"));
  EXPECT_FALSE(c.allows("{\"b\": \"a\nb\"}")) << "control characters are escaped";
  EXPECT_FALSE(c.allows("{\"b\": \"\xC3\"}")) << "half a character";
  EXPECT_FALSE(c.allows("{\"b\": \"\xED\xA0\x80\"}")) << "a surrogate is no character";
  EXPECT_FALSE(c.allows(R"({"b": "\ud83d"})"));
  EXPECT_FALSE(c.allows(R"({"b": "x"} )"));
}

TEST(JsonSchema, NumbersKeepToJson) {
  Compiled number(R"({"type": "number"})"), integer(R"({"type": "integer"})");
  for (const char* good : {"0", "-0", "10", "1.5", "-0.001", "1e9", "2.5E-3"}) {
    EXPECT_TRUE(number.allows(good)) << good;
  }
  for (const char* bad : {"01", "1.", ".5", "+1", "1e", "--1", "0x1", "NaN"}) {
    EXPECT_FALSE(number.allows(bad)) << bad;
  }
  EXPECT_TRUE(integer.allows("-42"));
  EXPECT_FALSE(integer.allows("1.0"));
  EXPECT_FALSE(integer.allows("1234567890123456")) << "a double holds 15 digits";
}

TEST(JsonSchema, OtherMembersNeverHaveANameOfTheirOwnSchema) {
  Compiled c(kSchemas[17]);
  EXPECT_TRUE(c.allows(R"({"ab": 1, "abcd": true, "a": false})"));
  EXPECT_TRUE(c.allows(R"({"abd": true})"));
  EXPECT_FALSE(c.allows(R"({"abd": true, "ab": true})"));
  EXPECT_FALSE(c.allows(R"({"\u0061b": true})")) << "another spelling of ab";
  EXPECT_FALSE(
      c.allows("{\"\xC3\xBC"
               "ber\": true}"));
}

TEST(JsonSchema, OtherMembersHaveNamesOfWholeCharacters) {
  // é C3 A9, € E2 82 AC, 𝄞 F0 9D 84 9E
  Compiled c(R"({"type": "object", "properties": {"\u00e9": {"type": "null"},
      "\u20ac": {"type": "null"}, "\ud834\udd1e": {"type": "null"}, "a\"b": {"type": "null"},
      "c\\": {"type": "null"}, "d\n": {"type": "null"}}})");
  const auto member = [](const std::string& name) { return "{\"" + name + "\":1}"; };
  for (const char* own : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9D\x84\x9E"}) {
    EXPECT_FALSE(c.allows(member(own))) << own;
    EXPECT_TRUE(c.allows(member(std::string(own) + "x"))) << own;
    EXPECT_TRUE(c.allows("{\"" + std::string(own) + "\":null}")) << own;
  }
  for (const char* other : {"\xC3\xA8", "\xC2\xA9", "\xE2\x82\xAD", "\xE2\x81\x81", "\xE3\x81\x82",
                            "\xF0\x9D\x84\x9F", "\xF0\x9F\x98\x80", "\xC3\xBC\xC3\xA9", "b", ""}) {
    EXPECT_TRUE(c.allows(member(other))) << other;
  }
  for (const char* cut : {"\xC3",
                          "\xC3"
                          "a",
                          "\xE2", "\xE2\x82",
                          "\xE2\x82"
                          "a",
                          "\xF0\x9D\x84", "\xF0\x9D\x84\xC3", "\xC3\xC3", "\xA9", "\xC0\xA9",
                          "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80",
                          "\xFF", "a\"b", "a\"", "c\\", "d\n"}) {
    EXPECT_FALSE(c.allows(member(cut))) << cut;
  }
  EXPECT_TRUE(c.allows("{\"a\\\"b\":null,\"c\\\\\":null,\"d\\n\":null,\"a\":1}"));
}

TEST(JsonSchema, WhatIsNotSupportedIsRefusedByName) {
  const struct {
    const char* schema;
    const char* sentence;
  } cases[] = {
      {R"({"type": "string", "pattern": "a+"})", "schema.pattern is not supported here"},
      {R"({"type": "string", "format": "date"})", "schema.format is not supported here"},
      {R"({"type": "number", "minimum": 1})", "schema.minimum is not supported here"},
      {R"({"oneOf": [{}]})", "schema.oneOf is not supported here"},
      {R"({"allOf": [{}]})", "schema.allOf is not supported here"},
      {R"({"type": "object", "patternProperties": {}})",
       "schema.patternProperties is not supported here"},
      {R"({"type": "array", "uniqueItems": true})", "schema.uniqueItems is not supported here"},
      {R"({"type": "object", "properties": {"a": {"not": {}}}})",
       "schema.properties.a.not is not supported here"},
      {R"({"$ref": "http://example.com/x"})", "schema.$ref is not \"#\" or an entry of #/$defs"},
      {R"({"type": "text"})", "schema.type is not a JSON type or a list of them"},
      {R"({"type": "object", "required": ["a"]})",
       "schema.required has \"a\", which properties does not describe"},
      {R"({"anyOf": [], "type": "null"})", "schema.type is not supported here"},
      {R"({"type": "integer", "enum": ["a"]})", "schema.enum has no value of the type"},
      {R"({"type": "array", "minItems": 3, "maxItems": 2})",
       "schema.minItems is more than maxItems"},
      {R"({"$ref": "#"})", "schema matches nothing: it contains itself without an end"},
      {R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})",
       "schema matches nothing: it contains itself without an end"},
      {"false", "schema is false: nothing would match"},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(one.schema);
    try {
      Compiled c(one.schema);
      ADD_FAILURE() << "was taken";
    } catch (const RequestError& e) {
      EXPECT_STREQ(e.what(), one.sentence);
      EXPECT_EQ(e.status(), 400);
    }
  }
}

TEST(JsonSchema, AVeryLargeSchemaIsRefused) {
  json schema = {{"const", std::string(300000, 'x')}};
  try {
    Grammar g;
    JsonGrammar parts(g);
    schema_grammar(g, parts, schema, "schema");
    ADD_FAILURE() << "was taken";
  } catch (const RequestError& e) {
    EXPECT_STREQ(e.what(), "schema is too large");
  }
}

json in_objects(json inner) {
  for (int i = 0; i < 5; ++i) inner = {{"type", "object"}, {"properties", {{"a", inner}}}};
  return inner;
}

TEST(JsonSchema, LongChainsOfReferencesAreCompiled) {
  on_a_small_stack([] {
    Compiled c(json{{"$defs", chain("$defs", "d", 1000, {{"type", "null"}}, in_objects)},
                    {"$ref", "#/$defs/d0"}}
                   .dump());
    EXPECT_TRUE(c.allows(R"({"a": {"a": {"a": {"a": {"a": {"a": {}}}}}}})"));
    EXPECT_FALSE(c.allows(R"({"a": {"a": {"a": {"a": {"a": {"a": 1}}}}}})"));
  });
}

TEST(JsonSchema, AChainOfReferencesBeyondAllBoundsIsTooLarge) {
  const auto in_many = [](json inner) {
    for (int i = 0; i < 20; ++i) inner = {{"type", "object"}, {"properties", {{"a", inner}}}};
    return inner;
  };
  try {
    Compiled c(json{{"$defs", chain("$defs", "d", 1000, {{"type", "null"}}, in_many)},
                    {"$ref", "#/$defs/d0"}}
                   .dump());
    ADD_FAILURE() << "was taken";
  } catch (const RequestError& e) {
    EXPECT_STREQ(e.what(), "schema is too large");
    EXPECT_EQ(e.status(), 400);
    EXPECT_EQ(e.code(), "unsupported_schema");
  }
}

TEST(JsonSchema, TypesThatAreNamedAgainAreOne) {
  json schema = {{"type", "string"}};
  for (int i = 0; i < 30; ++i) {
    schema = {{"type", json(std::vector<std::string>(8, "object"))},
              {"properties", {{"a", schema}}},
              {"additionalProperties", false}};
  }
  Compiled c(schema.dump());
  EXPECT_TRUE(c.allows(R"({"a":{"a":{}}})"));
  EXPECT_FALSE(c.allows(R"({"a":{"b":{}}})"));
}

TEST(JsonSchema, KeywordsStandBesideTheTypesThatTheyAreOf) {
  Compiled c(R"({"type": ["object", "array", "null"], "properties": {"a": {"type": "null"}},
      "additionalProperties": false, "items": {"type": "boolean"}, "minItems": 1})");
  for (const char* good : {R"({"a":null})", "{}", "[true]", "null"}) {
    EXPECT_TRUE(c.allows(good)) << good;
  }
  for (const char* bad : {R"({"a":true})", "[]", "[null]", "1"}) {
    EXPECT_FALSE(c.allows(bad)) << bad;
  }
}

TEST(JsonSchema, LongListsOfValuesAndTypesAreGoneThroughOnce) {
  // Each value with each type would be hours.
  json schema = {{"enum", json(std::vector<std::string>(90000, "a"))},
                 {"type", json(std::vector<std::string>(90000, "string"))}};
  Compiled c(schema.dump());
  EXPECT_TRUE(c.allows("\"a\""));
}

TEST(JsonSchema, LongListsOfRequiredNamesAreGoneThroughOnce) {
  json properties = json::object();
  for (int i = 0; i < 1000; ++i) properties["p" + std::to_string(i)] = {{"type", "null"}};
  Compiled c(json{{"type", "object"},
                  {"properties", properties},
                  {"additionalProperties", false},
                  {"required", json(std::vector<std::string>(190000, "p999"))}}
                 .dump());
  EXPECT_TRUE(c.allows(R"({"p3":null,"p999":null})"));
  EXPECT_FALSE(c.allows(R"({"p3":null})"));
}

TEST(JsonSchema, ListsBeyondAllBoundsAreTooLarge) {
  const json many(std::vector<std::string>(200001, "null"));
  const json lists[] = {{{"enum", many}},
                        {{"type", many}},
                        {{"anyOf", json(std::vector<json>(200001, true))}},
                        {{"properties", {{"null", true}}}, {"required", many}}};
  for (const json& schema : lists) {
    try {
      Compiled c(schema.dump());
      ADD_FAILURE() << "was taken";
    } catch (const RequestError& e) {
      EXPECT_STREQ(e.what(), "schema is too large");
      EXPECT_EQ(e.code(), "unsupported_schema");
    }
  }
}

}  // namespace
}  // namespace server
