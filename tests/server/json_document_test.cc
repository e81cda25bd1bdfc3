// SPDX-License-Identifier: MIT
// JSON of clients: the tree is that of the JSON library, and takes no more than was counted before.
#include "json_document.h"

#include <gtest/gtest.h>

namespace server {
namespace {

constexpr uint64_t kAny = UINT64_MAX;

std::string repeated(const std::string& text, int n, const std::string& between) {
  std::string out;
  for (int i = 0; i < n; ++i) out += (i == 0 ? "" : between) + text;
  return out;
}

// Bytes of a tree without what the allocator adds: that is between 8 and 24 a piece.
uint64_t bytes_of(const json& value) {
  constexpr uint64_t kPiece = 16;
  uint64_t bytes = 0;
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    bytes += sizeof text + kPiece + (text.capacity() > 15 ? text.capacity() + kPiece : 0);
  } else if (value.is_array()) {
    const auto& list = value.get_ref<const json::array_t&>();
    bytes +=
        sizeof list + kPiece + (list.capacity() != 0 ? list.capacity() * sizeof(json) + kPiece : 0);
    for (const json& element : list) bytes += bytes_of(element);
  } else if (value.is_object()) {
    const auto& members = value.get_ref<const json::object_t&>();
    bytes += sizeof members + kPiece;
    if (members.capacity() != 0) bytes += members.capacity() * sizeof(members[0]) + kPiece;
    for (const auto& [name, member] : members) {
      bytes += (name.capacity() > 15 ? name.capacity() + kPiece : 0) + bytes_of(member);
    }
  }
  return bytes;
}

TEST(JsonDocument, IsTheTreeOfTheText) {
  const std::string texts[] = {
      "{}",
      "[]",
      "null",
      R"( {"a" : [ 1, -2, 3.5e3, true, false, null, "x\n\u00e9" ], "b":{"c":[[],{}]}, "a" : 2} )",
      R"({"arguments": "{\"a\": [1, 2]}", "x": ["a,b:c[", "]}"], "": 18446744073709551615})",
      "[" + repeated("[" + repeated("7", 50, ",") + "]", 50, " , ") + "]",
      "{\"prompt\":[" + repeated("12345", 100000, ",") + "]}",
      "[" + repeated("{\"\":0}", 10000, ",") + "]",
      "[" + repeated("\"\"", 10000, ",") + "]",
      "[" + repeated("\"a text that is longer than fifteen\"", 1000, ",") + "]",
      repeated("[", 99, "") + repeated("]", 99, "")};
  for (const std::string& text : texts) {
    const JsonShape shape = shape_of(text, kAny);
    EXPECT_EQ(shape.fault, "") << text.substr(0, 100);
    JsonDocument document;
    EXPECT_EQ(document.parse(text, shape), 0u) << text.substr(0, 100);
    EXPECT_EQ(document.root(), json::parse(text)) << text.substr(0, 100);
    EXPECT_LE(bytes_of(document.root()), shape.bytes) << text.substr(0, 100);
    JsonDocument moved(std::move(document));
    EXPECT_EQ(moved.root(), json::parse(text));
  }
}

TEST(JsonDocument, SaysWhereATextIsNoJson) {
  const struct {
    const char* text;
    size_t at;
  } cases[] = {{"", 1}, {"{", 2}, {"{\"a\":}", 6}, {"[1,]", 4}, {"[1] x", 5}, {"\"\xff\"", 2}};
  for (const auto& [text, at] : cases) {
    JsonDocument document;
    EXPECT_EQ(document.parse(text, shape_of(text, kAny)), at) << text;
  }
  JsonDocument document;
  EXPECT_NE(document.parse("[1e999]", shape_of("[1e999]", kAny)), 0u);
}

TEST(JsonDocument, WhatWouldTakeTooMuchIsNotMade) {
  const std::string lists =
      "[" + repeated(repeated("[", 97, "") + repeated("]", 97, ""), 5000, ",") + "]";
  const JsonShape shape = shape_of(lists, most_tree_bytes(lists.size()));
  EXPECT_NE(shape.fault.find("more values than its"), std::string::npos) << shape.fault;
  EXPECT_LT(shape.sizes.size() * 80, most_tree_bytes(lists.size()) + 1000);
  const std::string objects = "[" + repeated("{\"\":0}", 1 << 18, ",") + "]";
  EXPECT_NE(shape_of(objects, most_tree_bytes(objects.size())).fault, "");
  // A call's arguments are JSON in a text; they are counted however the name or they are written.
  const auto nest = [](const std::string& open) {
    const std::string lists = open + repeated(open + "]", 1 << 12, ",") + "]";
    return open + repeated(lists, 8, ",") + "]";
  };
  const std::string nested = nest("["), escaped = nest("\\u005B");
  for (const char* name : {"arguments", "\\u0061rguments"}) {
    for (const std::string& text : {nested, escaped}) {
      const std::string call = "{\"" + std::string(name) + "\": \"" + text + "\"}";
      EXPECT_GT(shape_of(call, kAny).bytes, (80u << 15)) << name;
    }
  }
  EXPECT_LT(shape_of("{\"text\": \"" + nested + "\"}", kAny).bytes, 1u << 20);
  std::string fault;
  EXPECT_EQ(parse_nested(repeated("[", 101, ""), &fault), nullptr);
  EXPECT_NE(fault, "");
  EXPECT_EQ(parse_nested("{\"a\":1}", &fault), json({{"a", 1}}));
  EXPECT_EQ(parse_nested("{}", &fault), json::object());
}

TEST(JsonDocument, LongListsAreOfNumbers) {
  EXPECT_EQ(shape_of("[" + repeated("7", 70000, ",") + "]", kAny).fault, "");
  EXPECT_NE(shape_of("[" + repeated("\"7\"", 70000, ",") + "]", kAny).fault, "");
  EXPECT_NE(shape_of("[" + repeated("7", 70000, ",") + ",[],7]", kAny).fault, "");
}

TEST(JsonDocument, BodiesShareABudget) {
  MemoryBudget budget(100000);
  MemoryBudget::Share first(budget), second(budget);
  const std::string body = "{\"a\": \"" + std::string(10000, 'x') + "\"}";
  EXPECT_EQ(parse_body(body, first).root()["a"].get<std::string>().size(), 10000u);
  EXPECT_GT(budget.taken(), 50000u);
  try {
    parse_body(body, second);
    FAIL() << "there is no room for it";
  } catch (const RequestError& e) {
    EXPECT_EQ(e.status(), 503);
  }
  first.release();
  EXPECT_EQ(budget.taken(), 0u);
  EXPECT_NO_THROW(parse_body(body, second));
}

}  // namespace
}  // namespace server
