// SPDX-License-Identifier: MIT
// JSON schemas as grammars: which texts they allow, and what they refuse by its place.
#include "support/watched_new.h"
#include "text/grammar/compiled.h"

namespace sharpi::grammar {
namespace {

std::string refused_schema(std::string_view schema) {
  const auto made = compile(kSchema, schema);
  return made.is_ok() ? "compiled" : made.status().text();
}

TEST(GrammarSchema, Strings) {
  expect_texts(
      kSchema,
      {{R"({"type": "string", "minLength": 2, "maxLength": 3})",
        {R"("ab")", R"("ééé")", R"("\u00e9b")", R"("\ud83d\ude00a")"},
        {R"("a")", R"("abcd")", R"("\ud83da")", R"("a)"}},
       {R"({"type": "string", "pattern": "^[a-z]{2,4}$"})",
        {R"("ab")", R"("abcd")"},
        {R"("a")", R"("abcde")", R"("aB")"}},
       {R"({"type": "string", "pattern": "b+"})", {R"("abc")", R"("bb")"}, {R"("ac")", R"("")"}},
       {R"({"type": "string", "pattern": "^a|b$"})", {R"("ac")", R"("cb")"}, {R"("ca")"}},
       {R"({"type": "string", "pattern": "^(?!foo)[a-z]+$"})", {R"("fox")"}, {R"("foobar")"}},
       {R"({"type": "string", "pattern": "^\"\\\\$"})", {R"("\"\\")"}, {R"("\u0022\\")"}},
       {R"({"type": "string", "pattern": "^[a-z ]+$", "minLength": 3, "maxLength": 4})",
        {R"("a b")", R"("abcd")"},
        {R"("ab")", R"("abcde")", R"("aBc")"}},
       {R"({"type": "string", "pattern": "^\\p{Lu}\\d$"})", {R"("A1")", R"("É2")"}, {R"("a1")"}}});
}

TEST(GrammarSchema, Formats) {
  expect_texts(
      kSchema,
      {{R"({"type": "string", "format": "date"})",
        {R"("2024-02-29")", R"("1999-12-31")"},
        {R"("2023-02-29")", R"("2024-13-01")", R"("0000-01-01")"}},
       {R"({"type": "string", "format": "date-time"})",
        {R"("2024-02-29T10:00:00Z")", R"("2024-02-29T23:59:59.25+02:00")"},
        {R"("2024-02-29 10:00:00Z")", R"("2024-02-29T24:00:00Z")"}},
       {R"({"type": "string", "format": "time"})", {R"("10:00:00Z")"}, {R"("10:00")"}},
       {R"({"type": "string", "format": "duration"})", {R"("P3DT4H")", R"("P2W")"}, {R"("P")"}},
       {R"({"type": "string", "format": "email"})", {R"("a.b@c.de")"}, {R"("a")", R"("a@")"}},
       {R"({"type": "string", "format": "hostname"})", {R"("a-b.c")"}, {R"("-a")", R"("a..b")"}},
       {R"({"type": "string", "format": "ipv4"})", {R"("255.0.1.9")"}, {R"("256.1.1.1")"}},
       {R"({"type": "string", "format": "ipv6"})",
        {R"("::")", R"("1:2:3:4:5:6:7:8")"},
        {R"("1:2")", R"("1::2::3")"}},
       {R"({"type": "string", "format": "uuid"})",
        {R"("123e4567-e89b-12d3-a456-426614174000")"},
        {R"("123e4567")"}},
       {R"({"type": "string", "format": "uri"})",
        {R"("https://a.b/c?d#e")", R"("mailto:a@b.c")"},
        {R"("a b")", R"("//x")"}}});
}

TEST(GrammarSchema, NumbersBetweenBounds) {
  for (const int low : {-123, -10, -1, 0, 1, 5, 99}) {
    for (const int high : {-7, 0, 3, 10, 105, 1000}) {
      if (low > high) continue;
      const std::string schema = R"({"type": "integer", "minimum": )" + std::to_string(low) +
                                 R"(, "maximum": )" + std::to_string(high) + "}";
      const auto matcher = matcher_of(compile(kSchema, schema));
      for (int i = low - 30; i <= high + 30; ++i) {
        EXPECT_EQ(allows(*matcher, std::to_string(i)), i >= low && i <= high) << schema << i;
      }
    }
  }
  expect_texts(
      kSchema,
      {{R"({"type": "integer", "multipleOf": 7, "minimum": -20})",
        {"-14", "0", "7", "7000"},
        {"-21", "8", "-0", "07"}},
       {R"({"type": "number", "exclusiveMinimum": -0.5, "maximum": 2.25})",
        {"-0.4", "0", "2.25", "2.250", "1.9999"},
        {"-0.5", "2.26", "-0", "3", "1e0", "-0.50"}},
       {R"({"type": "number", "multipleOf": 0.01})", {"1.25", "3"}, {"1.255"}},
       {R"({"type": "number"})", {"1.5e10", "-2", "0"}, {"01", ".5", "-"}},
       {R"({"type": "integer", "minimum": 1.5, "exclusiveMaximum": 4})", {"2", "3"}, {"1", "4"}}});
}

TEST(GrammarSchema, ObjectsEndAfterTheMembersThatAreNamed) {
  expect_texts(
      kSchema,
      {{R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
           "required": ["a"]})",
        {R"({"a":1})", R"({"a": 1, "b": "x"})", "{\n  \"a\": 1\n}"},
        {R"({})", R"({"a":1,"c":2})", R"({"b":"x","a":1})", R"({"a":1,"a":2})"}},
       {R"({"type": "object", "properties": {"a": {}}, "additionalProperties": {"type": "null"}})",
        {R"({"a":1,"b":null})", R"({"c":null,"d":null})"},
        {R"({"b":1})", R"({"b":null,"a":1})"}},
       {R"({"type": "object"})", {R"({"x":{"y":[]}})", "{}"}, {"[]"}},
       {R"({"properties": {"a": {"type": "null"}},
            "patternProperties": {"^x": {"type": "integer"}}})",
        {R"({"x1":1,"x2":2})", R"({"a":null,"x":3})"},
        {R"({"y":1})", R"({"x":"s"})"}},
       {R"({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}})",
        {R"({"ab":1})"},
        {R"({"A":1})"}},
       {R"({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2, "maxProperties": 2})",
        {R"({"a":1,"c":2})"},
        {R"({"a":1})", R"({"a":1,"b":1,"c":1})"}},
       {R"({"properties": {"a": {"not": {}}, "b": {}}})", {R"({"b":1})", "{}"}, {R"({"a":1})"}},
       {R"({"type": "object", "required": ["z"]})", {R"({"z":1})"}, {"{}"}}});
}

TEST(GrammarSchema, Arrays) {
  expect_texts(kSchema,
               {{R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
                 {"[1]", "[1, 2,3]"},
                 {"[]", "[1,2,3,4]"}},
                {R"({"prefixItems": [{"type": "integer"}, {"type": "null"}], "items": false})",
                 {"[]", "[1]", "[1,null]"},
                 {"[null]", "[1,null,2]"}},
                {R"({"prefixItems": [{"type": "integer"}]})", {"[1]", "[]"}, {"[1,2]"}},
                {R"({"items": {"enum": ["a", "b", 1]}, "uniqueItems": true, "minItems": 2})",
                 {R"(["a","b"])", R"([1,"b","a"])"},
                 {R"(["a","a"])", R"(["a"])"}}});
}

TEST(GrammarSchema, SchemasThatHoldAtOnceAndOneOfSeveral) {
  expect_texts(
      kSchema,
      {{R"({"allOf": [{"properties": {"a": {"type": "integer", "minimum": 3}}, "required": ["a"]},
                     {"properties": {"a": {"maximum": 5}, "b": {"type": "null"}}}]})",
        {R"({"a":4})", R"({"a":5,"b":null})"},
        {R"({"a":6})", R"({"a":2})", "{}"}},
       {R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})", {"1.5"}, {"1", "2"}},
       {R"({"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 10}]})",
        {"-1", "11"},
        {"5"}},
       {R"({"oneOf": [{"properties": {"k": {"const": "a"}, "x": {}}, "required": ["k", "x"]},
                     {"properties": {"k": {"const": "b"}}, "required": ["k"]}],
           "discriminator": {"propertyName": "k"}})",
        {R"({"k":"a","x":1})", R"({"k":"b"})"},
        {R"({"k":"a"})", R"({"k":"b","x":1})"}},
       {R"({"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"v": {"$ref": "#/$defs/m/anyOf/1"},
           "next": {"$ref": "#/$defs/n"}}, "required": ["v"]},
           "m": {"anyOf": [{}, {"type": "null"}]}}})",
        {R"({"v":null,"next":{"v":null}})"},
        {R"({"v":1})"}},
       {R"({"$ref": "#x", "$defs": {"y": {"$anchor": "x", "type": "null"}}})", {"null"}, {"1"}},
       {R"({"enum": ["a", "ab", 1, {"x": [1, 2]}]})",
        {R"("a")", R"("ab")", "1", R"({"x": [1, 2]})"},
        {R"("abc")", "2"}},
       {R"({"type": "string", "enum": ["a", 1, "bb"], "maxLength": 1})",
        {R"("a")"},
        {"1", R"("bb")"}},
       {R"({"type": "string", "nullable": true})", {"null", R"("a")"}, {"1"}}});
}

// unevaluatedProperties and unevaluatedItems see what is applied for the same value, and nothing
// else.
TEST(GrammarSchema, MembersAndItemsThatNoAppliedSchemaDescribes) {
  expect_texts(
      kSchema,
      {{R"({"unevaluatedProperties": false})", {"{}"}, {R"({"a":1})"}},
       {R"({"allOf": [{"properties": {"a": {}}}, {"unevaluatedProperties": false}]})",
        {"{}"},
        {R"({"a":1})"}},
       {R"({"allOf": [{"properties": {"a": {}}}], "properties": {"b": {}},
           "unevaluatedProperties": false})",
        {"{}", R"({"b":1,"a":2})"},
        {R"({"c":1})"}},
       {R"({"$ref": "#/$defs/x", "properties": {"b": {"type": "null"}},
           "$defs": {"x": {"unevaluatedProperties": false, "properties": {"a": {}}}}})",
        {R"({"a":1})", "{}"},
        {R"({"b":null})"}},
       {R"({"anyOf": [{"properties": {"k": {"const": 1}, "a": {}}, "required": ["k"]},
                     {"properties": {"k": {"const": 2}, "b": {}}, "required": ["k"]}],
           "unevaluatedProperties": {"type": "integer"}})",
        {R"({"k":1,"a":"x"})", R"({"k":2,"b":"x","z":3})"},
        {R"({"k":1,"z":"x"})"}},
       {R"({"properties": {"a": {}}, "unevaluatedProperties": false,
           "allOf": [{"unevaluatedProperties": true}]})",
        {R"({"a":1,"z":"x"})"},
        {"[]"}},
       {R"({"unevaluatedItems": false})", {"[]"}, {"[1]"}},
       {R"({"allOf": [{"prefixItems": [{}]}, {"unevaluatedItems": false}]})", {"[]"}, {"[1]"}},
       {R"({"allOf": [{"prefixItems": [{}]}], "unevaluatedItems": {"type": "null"}})",
        {"[]", "[1]", "[1,null]"},
        {"[1,2]"}}});
}

TEST(GrammarSchema, ReferencesBelongToTheResourceAroundThem) {
  expect_texts(
      kSchema,
      {{R"({"$id": "r", "$ref": "c#x", "$defs": {"a": {"$id": "d", "$anchor": "x", "type": "null"},
           "b": {"$id": "c", "allOf": [{"$anchor": "x", "type": "string"}]}}})",
        {R"("a")"},
        {"null"}},
       {R"({"properties": {"v": {"$id": "in", "$ref": "#/$defs/t", "$defs": {"t": {"const": 1}}}},
           "required": ["v"], "$defs": {"t": {"const": 2}}})",
        {R"({"v":1})"},
        {R"({"v":2})"}}});
}

// A double holds 15 digits: with more, a number with a fraction may be read as a whole one.
TEST(GrammarSchema, NumbersThatAreToldApartAreReadAsTheyAreWritten) {
  expect_texts(kSchema, {{R"({"oneOf": [{"type": "integer"}, {"minimum": 2}]})",
                          {"1", "2.5", "9999999.99999999", "-3"},
                          {"3", "193049001402005.000429", "2.000000000000000001"}}});
}

TEST(GrammarSchema, MembersThatDependOnOthers) {
  expect_texts(kSchema,
               {{R"({"properties": {"a": {}, "b": {}, "c": {}},
           "dependentRequired": {"c": ["a"], "a": ["b"]}})",
                 {R"({})", R"({"b":1})", R"({"a":1,"b":1})", R"({"a":1,"b":1,"c":1})"},
                 {R"({"a":1})", R"({"c":1})", R"({"b":1,"c":1})", R"({"a":1,"c":1})"}},
                // A member that nobody names comes where another one asks for it, and then alone.
                {R"({"properties": {"a": {}}, "dependentRequired": {"a": ["z"], "q": ["a"]}})",
                 {R"({})", R"({"a":1,"z":1})"},
                 {R"({"a":1})", R"({"z":1})", R"({"a":1,"q":1,"z":1})"}},
                {R"({"properties": {"n": {"type": "integer"}, "m": {}}, "required": ["n"],
           "dependentSchemas": {"m": {"properties": {"n": {"minimum": 5}}}}})",
                 {R"({"n":1})", R"({"n":5,"m":0})"},
                 {R"({"n":1,"m":0})"}},
                {R"({"type": ["object", "string"], "dependentSchemas": {"a": false}})",
                 {R"("x")", R"({"b":1})"},
                 {R"({"a":1})"}},
                {R"({"dependencies": {"a": ["b"], "c": {"required": ["d"]}},
           "additionalProperties": {"type": "integer"}})",
                 {R"({"x":1})", R"({"a":1,"b":1})", R"({"c":1,"d":2,"x":3})"},
                 {R"({"a":1})", R"({"a":1,"b":null})", R"({"c":1})"}},
                {R"({"$ref": "#/$defs/n", "$defs": {"n": {
           "properties": {"a": {}, "b": {}, "c": {"$ref": "#/$defs/n"}},
           "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"c": {"$ref": "#/$defs/n"}}}}})",
                 {R"({"c":{"c":{"a":1,"b":2}}})"},
                 {R"({"c":{"c":{"a":1}}})"}}});
  std::string many = R"({"properties": {"a": {}}, "dependentRequired": {"m0": ["a"])";
  for (int i = 1; i < 7; ++i) many += ", \"m" + std::to_string(i) + "\": [\"a\"]";
  EXPECT_EQ(refused_schema(many + "}}"),
            "schema.dependentRequired.m6 is one dependency of members more than 6 in one object");
}

TEST(GrammarSchema, WhatCannotBeEnforcedIsRefusedByItsPlace) {
  EXPECT_EQ(refused_schema(R"({"properties": {"a": {"not": {"type": "null"}}}})"),
            "schema.properties.a.not cannot be enforced while a text is written");
  EXPECT_EQ(refused_schema(R"({"if": {}})"),
            "schema.if cannot be enforced while a text is written");
  EXPECT_EQ(refused_schema(R"({"minLenght": 3})"),
            "schema.minLenght is not a keyword that is known");
  EXPECT_EQ(refused_schema(R"({"pattern": "(a"})"), "schema.pattern has a ( without a ) at byte 2");
  EXPECT_EQ(refused_schema(R"({"$ref": "#/x"})"), "schema.$ref leads to nothing in this document");
  EXPECT_EQ(refused_schema(R"({"$ref": "#"})"), "schema refers to itself without an end");
  EXPECT_EQ(refused_schema(R"({"anyOf": [{"$ref": "#"}]})"), "no text matches the schema");
  EXPECT_EQ(refused_schema(R"({"minimum": 3, "maximum": 2})"), "no text matches the schema");
  EXPECT_EQ(refused_schema(R"({"items": {"type": "object"}, "uniqueItems": true})"),
            "schema.uniqueItems cannot be enforced while a text is written, but for the items of a "
            "short enum");
  EXPECT_EQ(refused_schema(R"({"enum": [{"a": 1}], "unevaluatedProperties": false})"),
            "schema lists values beside keywords that describe them");
  EXPECT_EQ(refused_schema(R"({"enum": [{"a": 1}], "required": ["b"]})"),
            "schema lists values beside keywords that describe them");
  EXPECT_EQ(refused_schema("{"), "the schema is not JSON at byte 1: a key is expected");
  EXPECT_EQ(refused_schema(R"({"type": "strin"})"), "schema.type is not a type or a list of types");
}

TEST(GrammarSchema, LenientlyItIsListed) {
  const auto made = compile(
      kSchema, R"({"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "zz": 1})",
      true);
  ASSERT_TRUE(made.is_ok());
  ASSERT_EQ(made.value()->notes().size(), 2u);
  EXPECT_EQ(made.value()->notes()[0], "schema.zz is not a keyword that is known");
  EXPECT_TRUE(allows(*matcher_of(made), "[1,1]"));
}

TEST(GrammarSchema, LongChainsAreWalkedOnASmallStack) {
  std::string schema = R"({"$ref": "#/$defs/d0", "$defs": {)";
  for (int i = 0; i < 1000; ++i) {
    schema += "\"d" + std::to_string(i) + R"(": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/d)" +
              std::to_string(i + 1) + "\"}]}, ";
  }
  schema += R"("d1000": {"type": "boolean"}}})";
  on_a_small_stack([&] {
    const auto matcher = matcher_of(compile(kSchema, schema));
    ASSERT_NE(matcher, nullptr);
    EXPECT_TRUE(allows(*matcher, "true"));
    EXPECT_TRUE(allows(*matcher, "null"));
    EXPECT_FALSE(allows(*matcher, "1"));
  });
}

TEST(GrammarSchema, AlternativesThatDifferInALengthCostNoMoreThanOne) {
  std::string schema = R"({"anyOf": [{"type": "string", "maxLength": 1})";
  for (int i = 2; i <= 8000; ++i) {
    schema += R"(, {"type": "string", "maxLength": )" + std::to_string(i) + "}";
  }
  const auto matcher = matcher_of(compile(kSchema, schema + "]}"));
  ASSERT_NE(matcher, nullptr);
  std::vector<uint32_t> mask(test_vocabulary()->tree->n_words());
  EXPECT_TRUE(matcher->accept_text("\"hello").is_ok());
  EXPECT_TRUE(matcher->mask(mask.data()).is_ok());
  EXPECT_TRUE(allows(*matcher, std::string(7995, 'a') + "\""));
  EXPECT_FALSE(allows(*matcher, std::string(7996, 'a') + "\""));
}

// A count of members is a number in the schema, and costs nothing by itself.
TEST(GrammarSchema, CountsOfMembersCostNoMoreThanTheMembers) {
  const std::string members = R"("properties": {"a": {}, "b": {}}, )";
  const std::string most = R"("maxProperties": 2147483647)", least = R"("minProperties": )";
  EXPECT_TRUE(compile(kSchema, "{" + members + most + "}").is_ok());
  expect_texts(kSchema, {{R"({"properties": {"a": {}, "b": {}}, "additionalProperties": false,
                             "minProperties": 2, "maxProperties": 2147483647})",
                          {R"({"a":1,"b":2})"},
                          {R"({"a":1})", "{}"}}});
  for (const std::string& inside : {std::string(), members, members + most + ", "}) {
    for (const char* others : {"true", "false", R"({"type": "integer"})"}) {
      const auto made = compile(kSchema, "{" + inside + R"("additionalProperties": )" + others +
                                             ", " + least + "2147483647}");
      ASSERT_FALSE(made.is_ok());
      EXPECT_EQ(made.status().code(), Code::kUnsupported) << made.status().text();
    }
  }
  EXPECT_LT(testing::largest_allocation(), uint64_t{1} << 30);
}

TEST(GrammarSchema, WorkAndMemoryAreBounded) {
  std::string schema = R"({"allOf": [{})";
  for (int i = 0; i < 20; ++i) {
    const std::string n = std::to_string(i);
    schema += R"(, {"anyOf": [{"properties": {"a)" + n + R"(": {}}}, {"properties": {"b)" + n +
              R"(": {}}}]})";
  }
  const auto made = compile(kSchema, schema + "]}");
  ASSERT_FALSE(made.is_ok());
  EXPECT_EQ(made.status().code(), Code::kDoesNotFit) << made.status().text();

  const auto matcher =
      matcher_of(compile(kSchema, R"({"type": "string", "pattern": "a.{20000}b"})"));
  ASSERT_NE(matcher, nullptr);
  const Status status = matcher->accept_text("\"" + std::string(19000, 'a'));
  EXPECT_EQ(status.code(), Code::kDoesNotFit) << status.text();
}

}  // namespace
}  // namespace sharpi::grammar
