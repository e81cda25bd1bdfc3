// SPDX-License-Identifier: MIT
// Grammars over the vocabulary of a fixture, and what they allow.
// Thread rule: one thread an object.
#pragma once

#include <gtest/gtest.h>
#include <pthread.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf_file.h"
#include "support/paths.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer.h"

namespace sharpi::grammar {

inline constexpr GrammarKind kSchema = GrammarKind::kJsonSchema;

inline const Tokenizer& test_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = [] {
    auto file = GgufFile::open(test::source_path("tests/fixtures/tiny-qwen3-q8_0.gguf"));
    EXPECT_TRUE(file.is_ok());
    return Tokenizer::create(file.take()).take();
  }();
  return *tokenizer;
}

inline std::shared_ptr<const Vocabulary> test_vocabulary() {
  static const auto vocabulary = std::make_shared<const Vocabulary>(test_tokenizer());
  return vocabulary;
}

inline GrammarRequest request_of(GrammarKind kind, std::string_view text, bool lenient = false) {
  GrammarRequest request;
  request.kind = kind;
  request.text = text;
  request.lenient = lenient;
  return request;
}

inline Result<std::shared_ptr<const Grammar>> compile(GrammarKind kind, std::string_view text,
                                                      bool lenient = false) {
  return Grammar::compile(test_vocabulary(), request_of(kind, text, lenient));
}

inline std::unique_ptr<Matcher> matcher_of(const Result<std::shared_ptr<const Grammar>>& made) {
  EXPECT_TRUE(made.is_ok()) << made.status().text();
  if (!made.is_ok()) return nullptr;
  auto matcher = Matcher::create(made.value());
  EXPECT_TRUE(matcher.is_ok()) << matcher.status().text();
  return matcher.take();
}

inline bool allows(const Matcher& begun, std::string_view text) {
  const auto matcher = begun.clone();
  return matcher->accept_text(text).is_ok() && matcher->progress() != Progress::kOpen;
}

struct TextCase {
  const char* grammar;
  std::vector<const char*> good, bad;
};

inline void expect_texts(GrammarKind kind, const std::vector<TextCase>& cases) {
  for (const TextCase& c : cases) {
    const auto matcher = matcher_of(compile(kind, c.grammar));
    ASSERT_NE(matcher, nullptr) << c.grammar;
    for (const char* text : c.good) EXPECT_TRUE(allows(*matcher, text)) << c.grammar << " " << text;
    for (const char* text : c.bad) EXPECT_FALSE(allows(*matcher, text)) << c.grammar << " " << text;
  }
}

/// Runs a function on a thread whose stack calls within calls would soon overflow.
template <typename Work>
void on_a_small_stack(Work work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 << 10), 0);
  pthread_t thread;
  const auto run = [](void* given) -> void* {
    (*static_cast<Work*>(given))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace sharpi::grammar
