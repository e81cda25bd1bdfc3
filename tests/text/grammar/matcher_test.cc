// SPDX-License-Identifier: MIT
// Matchers and their masks: every bit of a mask is what accepting the token says, states are
// forgotten without harm, clones go their own way.
#include <algorithm>
#include <random>
#include <set>
#include <thread>

#include "text/byte_alphabet.h"
#include "text/grammar/compiled.h"
#include "text/vocabulary_file.h"

namespace sharpi::grammar {
namespace {

bool has(const std::vector<uint32_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1) != 0;
}

void expect_mask_is_what_is_accepted(Matcher* matcher, const std::string& what) {
  const TokenTree& tree = *matcher->grammar().vocabulary().tree;
  std::vector<uint32_t> mask(tree.n_words());
  ASSERT_TRUE(matcher->mask(mask.data()).is_ok()) << what;
  for (int32_t token = 0; static_cast<uint32_t>(token) < tree.n_vocab(); ++token) {
    const bool accepted = matcher->clone()->accept(token).is_ok();
    ASSERT_EQ(has(mask, token), accepted) << what << " token " << token;
  }
}

// Byte by byte, so that texts are left in the middle of characters and escapes, too.
void expect_masks(GrammarKind kind, std::string_view grammar, std::string_view text,
                  const std::shared_ptr<const Vocabulary>& vocabulary = test_vocabulary()) {
  const auto matcher = matcher_of(Grammar::compile(vocabulary, request_of(kind, grammar)));
  ASSERT_NE(matcher, nullptr) << grammar;
  for (size_t i = 0; i <= text.size(); ++i) {
    expect_mask_is_what_is_accepted(
        matcher.get(), std::string(grammar) + " behind " + std::string(text.substr(0, i)));
    if (i == text.size()) break;
    ASSERT_TRUE(matcher->accept_text(text.substr(i, 1)).is_ok()) << grammar << " at " << i;
  }
  EXPECT_NE(matcher->progress(), Progress::kOpen) << grammar;
}

TEST(GrammarMask, IsWhatIsAccepted) {
  expect_masks(kSchema, R"({"type": "object"})", R"({"a": [1.5, "é", {}], "b":null})");
  expect_masks(kSchema, R"({"type": "string", "minLength": 2, "maxLength": 5})", R"("aé\n😀")");
  expect_masks(kSchema, R"({"items": {"type": "string", "maxLength": 3}})", R"(["abc", ""])");
  expect_masks(kSchema, R"({"type": "string", "pattern": "^[a-z]{1,6}-[0-9]{2}$"})",
               R"("some-12")");
  expect_masks(kSchema, R"({"type": "string", "pattern": "e.", "maxLength": 6})", R"("the e")");
  expect_masks(kSchema, R"({"type": "string", "format": "date-time"})",
               R"("2024-02-29T10:00:00Z")");
  expect_masks(kSchema, R"({"enum": ["the", "then", "there", 12, 123]})", R"("then")");
  expect_masks(kSchema, R"({"properties": {"n": {"minimum": -5, "maximum": 120, "type": "integer"}},
      "additionalProperties": {"type": "string"}})",
               R"({"n": 17, "no": "x"})");
  expect_masks(GrammarKind::kRegex, "[A-Z][a-z]+( [a-z]+)*\\.", "The end.");
  expect_masks(GrammarKind::kGbnf,
               "root ::= \"(\" root? \")\" | word (\", \" word)*\nword ::= [a-z]+", "(the, end)");
}

// Many tokens begin alike, some end within a character, or have bytes that make none.
std::shared_ptr<const Vocabulary> crowded_vocabulary() {
  VocabularyFile v;
  v.add_bytes();
  static constexpr const char* kPieces[] = {
      "a", "b", "x", "y",    "é",        "ü",        "日", "😀",       "\"", "\\",
      "{", " ", "1", "\xC3", "\x97\xA5", "\xED\xA0", "\n", "\\u00e9", ":",  "}"};
  std::mt19937 chance(3);
  std::set<std::string> known;
  while (known.size() < 3000) {
    std::string text, token;
    for (size_t n = 2 + chance() % 4; n > 0; --n) {
      text += kPieces[chance() % (chance() % 2 == 0 ? 8 : std::size(kPieces))];
    }
    for (const char c : text) utf8_append(kByteAlphabet[static_cast<unsigned char>(c)], &token);
    if (known.insert(token).second) v.add(token);
  }
  const Loaded loaded = load(v);
  EXPECT_TRUE(loaded.status.is_ok()) << loaded.status.text();
  return std::make_shared<const Vocabulary>(*loaded.tokenizer);
}

TEST(GrammarMask, IsWhatIsAcceptedWhereManyTokensBeginAlike) {
  const auto vocabulary = crowded_vocabulary();
  const auto masks = [&](GrammarKind kind, std::string_view grammar, std::string_view text) {
    expect_masks(kind, grammar, text, vocabulary);
  };
  masks(kSchema, R"({"type": "string"})", "\"aé\\n\"");
  masks(kSchema, R"({"type": "string", "minLength": 2, "maxLength": 4})", "\"日ab\"");
  masks(kSchema, R"({"type": "string", "pattern": "^[^b-d]*$", "minLength": 1})", "\"aüx\"");
  masks(kSchema, R"({"type": "string", "pattern": "x|y"})", "\"ab😀yé\"");
  masks(kSchema, R"({"type": "string", "pattern": "^[^x]{0,2}(x[^x]*)*$"})", "\"axbab\"");
  masks(kSchema, R"({"properties": {"a": {"type": "boolean"}}, "additionalProperties":
      {"type": "string"}})",
        "{\"aa\":\"é\", \"日\":\"b\"}");
  masks(GrammarKind::kRegex, "[a-zé]*1?", "abéa1");
  masks(GrammarKind::kRegex, ".*é.", "a日é😀");
  masks(GrammarKind::kGbnf, "root ::= [^\"]* \"\\\"\" (\"x\" | [ab] [^x]*)", "a日\"bé");
}

TEST(GrammarMask, EndsAreAllowedWhereTheTextMayEnd) {
  const auto matcher = matcher_of(compile(kSchema, R"({"type": "integer"})"));
  const TokenTree& tree = *test_vocabulary()->tree;
  const int32_t end = tree.ends().at(0);
  std::vector<uint32_t> mask(tree.n_words());
  ASSERT_TRUE(matcher->mask(mask.data()).is_ok());
  EXPECT_FALSE(has(mask, end));
  EXPECT_EQ(matcher->accept(end).code(), Code::kMismatch);
  ASSERT_TRUE(matcher->accept_text("12").is_ok());
  EXPECT_EQ(matcher->progress(), Progress::kMayEnd);
  ASSERT_TRUE(matcher->mask(mask.data()).is_ok());
  EXPECT_TRUE(has(mask, end));
  ASSERT_TRUE(matcher->accept(end).is_ok());
  EXPECT_EQ(matcher->progress(), Progress::kComplete);
  ASSERT_TRUE(matcher->mask(mask.data()).is_ok());
  EXPECT_EQ(std::count(mask.begin(), mask.end(), 0u), static_cast<int>(mask.size()));
  EXPECT_EQ(matcher->accept_text("3").code(), Code::kMismatch);
}

TEST(GrammarMatcher, WhatIsRefusedChangesNothing) {
  const auto matcher = matcher_of(compile(kSchema, R"({"type": "boolean"})"));
  ASSERT_TRUE(matcher->accept_text("tr").is_ok());
  EXPECT_EQ(matcher->accept_text("x").code(), Code::kMismatch);
  EXPECT_EQ(matcher->accept(-1).code(), Code::kInvalidArgument);
  EXPECT_EQ(matcher->accept(1 << 20).code(), Code::kInvalidArgument);
  const auto other = matcher->clone();
  ASSERT_TRUE(matcher->accept_text("ue").is_ok());
  EXPECT_EQ(matcher->progress(), Progress::kComplete);
  EXPECT_EQ(other->progress(), Progress::kOpen);
  std::string forced;
  ASSERT_TRUE(other->forced(100, &forced).is_ok());
  EXPECT_EQ(forced, "ue");
}

TEST(GrammarMatcher, ManyWaysToReadATextAreOneState) {
  const auto matcher =
      matcher_of(compile(kSchema, R"({"$ref": "#/$defs/x", "$defs": {"x": {"anyOf": [
      {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 1, "maxItems": 2},
      {"type": "array", "items": {"$ref": "#/$defs/x"}, "minItems": 2, "maxItems": 3},
      {"type": "null"}]}}})"));
  ASSERT_TRUE(matcher->accept_text(std::string(60, '[')).is_ok());
  const std::string close(60, ']');
  EXPECT_TRUE(allows(*matcher, "null" + close));
  EXPECT_TRUE(allows(*matcher, "null,null,null" + close));
  EXPECT_FALSE(allows(*matcher, "null,null,null,null" + close));
  EXPECT_FALSE(allows(*matcher, close));
}

TEST(GrammarMatcher, StatesKeepTheirMeaningWhenOthersAreForgotten) {
  const auto made = compile(kSchema, R"({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array",
      "items": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string", "maxLength": 20000}]}}}})");
  const auto first = matcher_of(made), second = matcher_of(made);
  const auto automaton = made.value()->automaton();
  for (int i = 0; i < 12000; ++i) ASSERT_TRUE(first->accept_text("[").is_ok()) << i;
  EXPECT_NE(made.value()->automaton(), automaton) << "a new one was begun";
  ASSERT_TRUE(first->accept_text("\"").is_ok());
  for (int i = 0; i < 12000; ++i) ASSERT_TRUE(first->accept_text("a").is_ok()) << i;
  EXPECT_TRUE(allows(*first, "\"" + std::string(12000, ']')));
  EXPECT_FALSE(allows(*first, "\"" + std::string(12001, ']')));
  EXPECT_TRUE(allows(*second, R"(["x",[]])"));
}

TEST(GrammarMatcher, ThreadsShareAGrammar) {
  const auto made =
      compile(kSchema, R"({"type": "object", "additionalProperties": {"type": "string"}})");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&made] {
      std::vector<uint32_t> mask(test_vocabulary()->tree->n_words());
      for (int k = 0; k < 20; ++k) {
        auto matcher = Matcher::create(made.value()).take();
        for (const char c : std::string(R"({"abc": "some text", "d": "e"})")) {
          EXPECT_TRUE(matcher->mask(mask.data()).is_ok());
          EXPECT_TRUE(matcher->accept_text({&c, 1}).is_ok());
        }
        EXPECT_EQ(matcher->progress(), Progress::kComplete);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace sharpi::grammar
