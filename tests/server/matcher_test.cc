// SPDX-License-Identifier: MIT
// The matcher of grammars: that its states and its stack are bounded whatever the schema is.
#include "matcher.h"

#include <gtest/gtest.h>

#include "compiled_schema.h"

namespace server {
namespace {

json or_null(json inner) {
  for (int i = 0; i < 12; ++i) inner = {{"anyOf", {{{"type", "null"}}, inner}}};
  return inner;
}

TEST(Matcher, LongChainsOfChoicesAreWalked) {
  on_a_small_stack([] {
    const json last = {{"$ref", "#/definitions/e0"}}, boolean = {{"type", "boolean"}};
    Compiled c(json{
        {"$defs", chain("$defs", "d", 1000, last, or_null)},
        {"definitions", chain("definitions", "e", 1000, boolean, or_null)},
        {"type", "object"},
        {"properties", {{"d0", {{"$ref", "#/$defs/d0"}}}}},
        {"additionalProperties",
         false}}.dump());
    for (const char* good : {R"({"d0":null})", R"({"d0":true})", "{}"}) {
      EXPECT_TRUE(c.allows(good)) << good;
    }
    EXPECT_FALSE(c.allows(R"({"d0":1})"));
  });
}

TEST(Matcher, ManyWaysToReadATextAreOneState) {
  Compiled c(R"({"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [
      {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "maxItems": 2},
      {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 2, "maxItems": 3},
      {"type": "null"}]}}})");
  Matcher& m = *c.matcher;
  const size_t before = m.n_cells();
  const Matcher::State open = m.walk(m.start(), std::string(40, '['));
  EXPECT_LT(m.n_cells(), before + 40 * 20) << "as many at each level";
  const std::string close(40, ']');
  EXPECT_TRUE(m.is_final(m.walk(open, "null" + close)));
  EXPECT_TRUE(m.is_final(m.walk(open, "null,null,null" + close))) << "the second kind";
  EXPECT_EQ(m.walk(open, "null,null,null,"), Matcher::kDead) << "no list is that long";
  EXPECT_EQ(m.walk(open, close), Matcher::kDead);
  EXPECT_EQ(m.walk(open, "null" + close + "]"), Matcher::kDead);
}

TEST(Matcher, WhatWasReadOneWayDoesNotGoOnAnother) {
  // Both lists begin alike; what follows each is told by how it was read.
  Compiled c(R"({"anyOf": [
      {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "null"}},
       "b": {"const": 1}}, "required": ["a", "b"], "additionalProperties": false},
      {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "boolean"}},
       "c": {"const": 2}}, "required": ["a", "c"], "additionalProperties": false}]})");
  EXPECT_TRUE(c.allows(R"({"a":[null],"b":1})"));
  EXPECT_TRUE(c.allows(R"({"a":[true],"c":2})"));
  EXPECT_TRUE(c.allows(R"({"a":[],"b":1})"));
  EXPECT_TRUE(c.allows(R"({"a":[],"c":2})"));
  EXPECT_FALSE(c.allows(R"({"a":[null],"c":2})"));
  EXPECT_FALSE(c.allows(R"({"a":[true],"b":1})"));
  EXPECT_FALSE(c.allows(R"({"a":[null,true],"b":1})"));
}

TEST(Matcher, AStateKeepsItsMeaningWhenOthersAreForgotten) {
  Compiled c(R"({"type": "array", "items": {"type": "array"}})");
  const std::string deep(40000, '[');
  Matcher::State state = c.matcher->start();
  size_t tidied = 0;
  for (const char byte : deep) {
    const size_t known = c.matcher->n_states();
    state = c.matcher->tidy(c.matcher->step(state, static_cast<unsigned char>(byte)));
    tidied += c.matcher->n_states() < known ? 1 : 0;
  }
  EXPECT_GT(tidied, 0u);
  EXPECT_TRUE(c.matcher->is_final(c.matcher->walk(state, std::string(deep.size(), ']'))));
  EXPECT_EQ(c.matcher->walk(state, std::string(deep.size() + 1, ']')), Matcher::kDead);
}

TEST(Matcher, WhatItRemembersIsBounded) {
  Compiled c(R"({"type": "array", "items": {"type": "string", "maxLength": 100000}})");
  Matcher::State state = c.matcher->walk(c.matcher->start(), "[\"");
  size_t most = 0;
  for (int i = 0; i < 30000; ++i) {
    state = c.matcher->tidy(c.matcher->step(state, 'a'));
    most = std::max(most, c.matcher->n_states());
  }
  EXPECT_LT(most, 8200u);
  state = c.matcher->walk(state, "\"]");
  EXPECT_TRUE(c.matcher->is_final(state));
}

}  // namespace
}  // namespace server
