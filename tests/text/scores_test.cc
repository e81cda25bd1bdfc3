// SPDX-License-Identifier: MIT
// Vocabularies with scores (SentencePiece) and Llama 3's, made in memory.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "text/vocabulary_file.h"

namespace sharpi {
namespace {

/// A vocabulary with scores; returns the file and adds every token's score.
struct ScoredFile : VocabularyFile {
  std::vector<float> scores;
  ScoredFile() {
    model = "llama";
    pre.clear();
    add("<unk>", TokenKind::kUnknown);
    writer.value("tokenizer.ggml.unknown_token_id", 0u);
    writer.value("tokenizer.ggml.add_bos_token", false);
    scores.push_back(0.0f);
  }
  int32_t piece(const std::string& text, float score, TokenKind kind = TokenKind::kNormal) {
    scores.push_back(score);
    return add(text, kind);
  }
  void done(bool space_prefix) {
    writer.value("tokenizer.ggml.add_space_prefix", space_prefix);
    writer.array("tokenizer.ggml.scores", scores);
  }
};

TEST(Scores, TheBestPairIsJoinedFirstAndTheLeftmostOfEquals) {
  ScoredFile v;
  const int32_t a = v.piece("a", -1), b = v.piece("b", -2), ab = v.piece("ab", -5);
  const int32_t ba = v.piece("ba", -4), aa = v.piece("aa", -9), abab = v.piece("abab", -3);
  v.done(/*space_prefix=*/false);
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_EQ(encode(*loaded.tokenizer, "aba"), (Ids{a, ba}));
  EXPECT_EQ(encode(*loaded.tokenizer, "aaa"), (Ids{aa, a}));
  EXPECT_EQ(encode(*loaded.tokenizer, "abb"), (Ids{ab, b}));
  EXPECT_EQ(encode(*loaded.tokenizer, "abab"), (Ids{a, ba, b}));  // no way to "abab" is left
  (void)abab;
}

TEST(Scores, ASpaceStandsBeforeTextsIfTheFileSaysSoAndIsWrittenAsItsMark) {
  for (const bool prefix : {true, false}) {
    ScoredFile v;
    const int32_t mark = v.piece("\u2581", -1), x = v.piece("x", -1);
    const int32_t marked = v.piece("\u2581x", -2);
    const int32_t end = v.piece("<end>", 0, TokenKind::kControl);
    v.done(prefix);
    const Loaded loaded = load(v);
    ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
    EXPECT_EQ(encode(*loaded.tokenizer, "x x"), prefix ? (Ids{marked, marked}) : (Ids{x, marked}));
    EXPECT_EQ(encode(*loaded.tokenizer, " x"), prefix ? (Ids{mark, marked}) : (Ids{marked}));
    EXPECT_EQ(encode(*loaded.tokenizer, "x<end>x", /*parse_special=*/true),
              prefix ? (Ids{marked, end, marked}) : (Ids{x, end, x}));
    std::string text;
    ASSERT_TRUE(loaded.tokenizer->decode(marked, false, &text).is_ok());
    EXPECT_EQ(text, " x");
  }
}

TEST(Scores, CharactersWithoutATokenAreBytesOrUnknown) {
  ScoredFile v;
  const int32_t e = v.piece("e", -1);
  v.piece("<0xC3>", 0, TokenKind::kByte);
  const int32_t a9 = v.piece("<0xA9>", 0, TokenKind::kByte);
  v.done(false);
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_EQ(encode(*loaded.tokenizer, "e\xC3\xA9"), (Ids{e, a9 - 1, a9}));
  EXPECT_EQ(encode(*loaded.tokenizer,
                   "e\xE4\xBD\xA0"
                   "e"),
            (Ids{e, 0, e}));
  EXPECT_EQ(encode(*loaded.tokenizer, "<0xC3>").size(), 6u);  // a text, not a byte
}

TEST(Scores, ListsThatDoNotFitAreMalformed) {
  ScoredFile absent;
  absent.piece("a", 0);
  expect_refused(absent, Code::kFormat, "tokenizer.ggml.scores is absent");
  ScoredFile few;
  few.piece("a", 0);
  few.scores.pop_back();
  few.done(false);
  expect_refused(few, Code::kFormat, "1 entries, but there are 2");
  ScoredFile nan;
  nan.piece("a", NAN);
  nan.done(false);
  expect_refused(nan, Code::kFormat, "scores[1]");
  ScoredFile squeezed;
  squeezed.writer.value("tokenizer.ggml.remove_extra_whitespaces", true);
  squeezed.done(false);
  expect_refused(squeezed, Code::kUnsupported, "remove_extra_whitespaces");
}

TEST(Scores, RandomVocabulariesEqualAPlainSearch) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    ScoredFile v;
    std::map<std::string, std::pair<float, int32_t>> known;
    const auto learn = [&](const std::string& text) {
      if (known.contains(text)) return;
      const auto score = -static_cast<float>(random() % 8);  // ties
      known[text] = {score, v.piece(text, score)};
    };
    for (const char* c : {"a", "b", "c"}) learn(c);
    for (int i = 0; i < 12; ++i) {
      std::string text;
      for (size_t n = 2 + random() % 3; text.size() < n;) text += "abc"[random() % 3];
      learn(text);
    }
    v.done(false);
    const Loaded loaded = load(v);
    ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
    Strings parts;
    std::string text;
    for (size_t n = random() % 40; text.size() < n;) text += "abc"[random() % 3];
    for (const char c : text) parts.emplace_back(1, c);
    for (;;) {  // every pair again for every join
      size_t best = parts.size();
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto at = known.find(parts[i] + parts[i + 1]);
        if (at == known.end()) continue;
        if (best == parts.size() || at->second.first > known[parts[best] + parts[best + 1]].first) {
          best = i;
        }
      }
      if (best == parts.size()) break;
      parts[best] += parts[best + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    Ids want;
    for (const std::string& p : parts) want.push_back(known[p].second);
    EXPECT_EQ(encode(*loaded.tokenizer, text), want) << text;
  }
}

TEST(LlamaBpe, APieceThatIsATokenIsTakenWhole) {
  VocabularyFile v;
  v.pre = "llama-bpe";
  v.add_bytes();
  const int32_t hello = v.add("Hello"), three = v.add("123"), four = v.add("1234");
  const int32_t bos = v.add("<|begin_of_text|>", TokenKind::kControl);
  v.writer.value("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_EQ(encode(*loaded.tokenizer, "Hello"), Ids{hello});
  EXPECT_EQ(encode(*loaded.tokenizer, "1234"), (Ids{three, '4'}));  // three digits at most
  (void)four;
  Ids with_bos;
  ASSERT_TRUE(loaded.tokenizer->encode("Hello", true, false, &with_bos).is_ok());
  EXPECT_EQ(with_bos, (Ids{bos, hello}));  // Llama 3 begins texts with BOS unless the file denies
}

}  // namespace
}  // namespace sharpi
