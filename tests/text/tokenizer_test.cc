// SPDX-License-Identifier: MIT
// Tokenizers of the tiny trained models: round trips of the golden tokens, and ids pinned from
// another implementation.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "support/golden.h"

namespace sharpi {
namespace {

using Ids = std::vector<int32_t>;

std::shared_ptr<const Tokenizer> load_tokenizer(const testing::Fixture& fixture) {
  auto file = GgufFile::open(fixture.gguf_path);
  EXPECT_TRUE(file.is_ok()) << file.status().text();
  if (!file.is_ok()) return nullptr;
  auto tokenizer = Tokenizer::create(file.take());
  EXPECT_TRUE(tokenizer.is_ok()) << tokenizer.status().text();
  return tokenizer.is_ok() ? tokenizer.take() : nullptr;
}

/// nullptr if the model is not at hand; the caller skips.
std::shared_ptr<const Tokenizer> load_tokenizer(std::string_view name) {
  const auto fixture = testing::find_fixture(name);
  return fixture ? load_tokenizer(*fixture) : nullptr;
}

Ids encode(const Tokenizer& tokenizer, std::string_view text, bool parse_special = true) {
  Ids ids;
  const Status status = tokenizer.encode(text, /*add_special=*/false, parse_special, &ids);
  EXPECT_TRUE(status.is_ok()) << status.text();
  return ids;
}

std::string decode(const Tokenizer& tokenizer, const Ids& ids, bool render_special = true) {
  std::string text;
  for (const int32_t id : ids) {
    const Status status = tokenizer.decode(id, render_special, &text);
    EXPECT_TRUE(status.is_ok()) << status.text();
  }
  return text;
}

/// The goldens of tiny-olmoe were tokenised with the qwen2 pre-tokenizer (")\n" is one token in
/// them), while its file says olmo; so they come back as text only.
bool has_canonical_ids(const testing::Fixture& fixture) {
  return fixture.name != "tiny-olmoe";
}

void expect_round_trip(const testing::Fixture& fixture, const Tokenizer& tokenizer,
                       const Ids& ids) {
  const std::string text = decode(tokenizer, ids);
  const Ids again = encode(tokenizer, text);
  EXPECT_EQ(decode(tokenizer, again), text) << fixture.name;
  if (has_canonical_ids(fixture)) {
    EXPECT_EQ(again, ids) << fixture.name;
  }
}

class GoldenTokens : public ::testing::TestWithParam<std::string> {};

TEST_P(GoldenTokens, SurviveDecodingAndEncoding) {
  const auto fixture = testing::find_fixture(GetParam());
  if (!fixture) GTEST_SKIP() << GetParam() << " is not at hand (set SHARPI_FIXTURES)";
  const auto tokenizer = load_tokenizer(*fixture);
  ASSERT_NE(tokenizer, nullptr);
  auto golden = testing::load_golden(fixture->golden_path);
  ASSERT_TRUE(golden.is_ok()) << golden.status().text();
  for (const auto& c : golden.value().cases) expect_round_trip(*fixture, *tokenizer, c.tokens);
  for (const auto& needle : golden.value().needles) {
    Ids whole = needle.prompt;
    whole.insert(whole.end(), needle.answer.begin(), needle.answer.end());
    expect_round_trip(*fixture, *tokenizer, whole);
  }
}

std::string test_name(std::string model) {
  std::replace(model.begin(), model.end(), '-', '_');
  return model;
}

INSTANTIATE_TEST_SUITE_P(Fixtures, GoldenTokens, ::testing::ValuesIn(testing::trained_models()),
                         [](const auto& row) { return test_name(row.param); });

struct HardString {
  const char* name;
  std::string_view text;
  Ids qwen2, qwen35, olmo, gemma4;
};

const std::vector<HardString>& hard_strings() {
  static const std::vector<HardString> strings = {
#include "hard_strings.inc"
  };
  return strings;
}

struct Family {
  const char* model;
  Ids HardString::*ids;
};

class HardStrings : public ::testing::TestWithParam<Family> {};

TEST_P(HardStrings, HaveTheIdsOfTheReferenceImplementation) {
  const auto tokenizer = load_tokenizer(GetParam().model);
  if (!tokenizer) GTEST_SKIP() << GetParam().model << " is not at hand (set SHARPI_FIXTURES)";
  for (const HardString& s : hard_strings()) {
    EXPECT_EQ(encode(*tokenizer, s.text), s.*GetParam().ids) << s.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, HardStrings,
                         ::testing::Values(Family{"tiny-qwen3", &HardString::qwen2},
                                           Family{"tiny-qwen35", &HardString::qwen35},
                                           Family{"tiny-olmoe", &HardString::olmo},
                                           Family{"tiny-gemma4kv", &HardString::gemma4}),
                         [](const auto& row) { return test_name(row.param.model); });

TEST(Tokenizer, AnyBytesSurviveEncodingAndDecodingWhereNothingIsNormalised) {
  const auto tokenizer = load_tokenizer("tiny-gemma4kv");
  ASSERT_NE(tokenizer, nullptr);
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    std::string text(random() % 60, '\0');
    for (char& c : text) c = static_cast<char>(random() % (round % 2 == 0 ? 256 : 128));
    EXPECT_EQ(decode(*tokenizer, encode(*tokenizer, text)), text);
  }
}

TEST(Tokenizer, BytesThatAreNoUtf8SurviveByteLevelTokenizers) {
  for (const char* model : {"tiny-qwen3", "tiny-qwen35"}) {
    const auto tokenizer = load_tokenizer(model);
    ASSERT_NE(tokenizer, nullptr);
    std::mt19937 random(6);
    for (int round = 0; round < 300; ++round) {
      std::string text;  // ASCII and stray bytes: nothing that normalisation could change
      for (auto n = random() % 60; n > 0; --n) {
        text.push_back(
            static_cast<char>(random() % 3 == 0 ? 0x80 + random() % 0x40 : random() % 0x80));
      }
      EXPECT_EQ(decode(*tokenizer, encode(*tokenizer, text)), text);
    }
  }
}

TEST(Tokenizer, EncodingNormalisesToNfc) {
  const auto tokenizer = load_tokenizer("tiny-qwen3");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(encode(*tokenizer, "e\xCC\x81"), encode(*tokenizer, "\xC3\xA9"));
  EXPECT_EQ(decode(*tokenizer, encode(*tokenizer, "e\xCC\x81")), "\xC3\xA9");
}

TEST(Tokenizer, GemmaDoesNotNormalise) {
  const auto tokenizer = load_tokenizer("tiny-gemma4kv");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(decode(*tokenizer, encode(*tokenizer, "e\xCC\x81")), "e\xCC\x81");
}

TEST(Tokenizer, ControlTokensInTextAreTextUnlessParsed) {
  for (const char* model : {"tiny-qwen3", "tiny-gemma4kv"}) {
    const auto tokenizer = load_tokenizer(model);
    ASSERT_NE(tokenizer, nullptr);
    const bool gemma = std::string_view(model) == "tiny-gemma4kv";
    const std::string text = gemma ? "<|turn>user<turn|>" : "<|im_start|>user<|im_end|>";
    const Ids parsed = encode(*tokenizer, text, true);
    EXPECT_EQ(tokenizer->kind(parsed.front()), TokenKind::kControl);
    EXPECT_EQ(tokenizer->kind(parsed.back()), TokenKind::kControl);
    const Ids plain = encode(*tokenizer, text, false);
    for (const int32_t id : plain) EXPECT_NE(tokenizer->kind(id), TokenKind::kControl);
    EXPECT_EQ(decode(*tokenizer, plain, false), text);
    EXPECT_EQ(decode(*tokenizer, parsed, false), "user");
    EXPECT_EQ(decode(*tokenizer, parsed, true), text);
  }
}

TEST(Tokenizer, UserDefinedTokensAreParsedAlways) {
  const auto tokenizer = load_tokenizer("tiny-gemma4kv");
  ASSERT_NE(tokenizer, nullptr);
  const Ids ids = encode(*tokenizer, "<|channel>", false);
  ASSERT_EQ(ids, Ids{6});
  EXPECT_EQ(tokenizer->kind(6), TokenKind::kUserDefined);
  EXPECT_EQ(decode(*tokenizer, ids, false), "<|channel>");
}

TEST(Tokenizer, GemmaTextsBeginWithOneBos) {
  const auto tokenizer = load_tokenizer("tiny-gemma4kv");
  ASSERT_NE(tokenizer, nullptr);
  Ids plain, already, literal;
  ASSERT_TRUE(tokenizer->encode("hi", true, true, &plain).is_ok());
  ASSERT_TRUE(tokenizer->encode("<bos>hi", true, true, &already).is_ok());
  ASSERT_TRUE(tokenizer->encode("<bos>hi", true, false, &literal).is_ok());
  EXPECT_EQ(plain.front(), tokenizer->bos());
  EXPECT_EQ(already, plain);
  EXPECT_EQ(literal.front(), tokenizer->bos());
  EXPECT_EQ(decode(*tokenizer, literal, false), "<bos>hi");
}

TEST(Tokenizer, QwenTextsGetNeitherBosNorEos) {
  const auto tokenizer = load_tokenizer("tiny-qwen3");
  ASSERT_NE(tokenizer, nullptr);
  Ids with;
  ASSERT_TRUE(tokenizer->encode("hi", true, true, &with).is_ok());
  EXPECT_EQ(with, encode(*tokenizer, "hi"));
  EXPECT_EQ(tokenizer->bos(), -1);
  EXPECT_EQ(tokenizer->eos(), 2045);
}

TEST(Tokenizer, EncodingAppends) {
  const auto tokenizer = load_tokenizer("tiny-qwen3");
  ASSERT_NE(tokenizer, nullptr);
  Ids ids = {1, 2};
  ASSERT_TRUE(tokenizer->encode("a", false, false, &ids).is_ok());
  EXPECT_EQ(ids, (Ids{1, 2, 64}));
}

TEST(Tokenizer, IdsOutsideTheVocabularyAreRefused) {
  const auto tokenizer = load_tokenizer("tiny-qwen3");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->n_vocab(), 2048u);
  for (const int32_t id : {-1, 2048, INT32_MAX, INT32_MIN}) {
    std::string text = "kept";
    EXPECT_EQ(tokenizer->decode(id, true, &text).code(), Code::kInvalidArgument) << id;
    EXPECT_EQ(text, "kept");
  }
}

TEST(Tokenizer, GenerationEndsAtTheTokensThatEndATurnOrText) {
  const std::map<std::string, std::vector<std::string>> expected = {
      {"tiny-qwen3", {"<|endoftext|>", "<|im_end|>"}},
      {"tiny-qwen35", {"<|endoftext|>", "<|im_end|>"}},
      {"tiny-gemma4kv", {"<eos>", "<turn|>"}},
  };
  for (const auto& [model, texts] : expected) {
    const auto tokenizer = load_tokenizer(model);
    ASSERT_NE(tokenizer, nullptr);
    std::vector<std::string> found;
    for (int32_t id = 0; id < static_cast<int32_t>(tokenizer->n_vocab()); ++id) {
      if (tokenizer->is_end_of_generation(id)) found.emplace_back(tokenizer->raw_text(id));
    }
    std::sort(found.begin(), found.end());
    EXPECT_EQ(found, texts) << model;
  }
}

TEST(Tokenizer, MillionByteTextsOfOneKindComeBackWhole) {
  // Each is a worst case of some step (regex runs, merges over one piece, special-token search,
  // canonical ordering); a quadratic step would take minutes.
  const char* units[] = {" ",
                         "\n",
                         " \n",
                         "\t x",
                         "a",
                         "1",
                         "!",
                         "'S",
                         "<|im_star",
                         "\xFF",
                         "a\xFF",
                         "\xE4\xBD",
                         "\xE4\xBD\xA0",
                         "the quick brown "};
  for (const char* model : {"tiny-qwen3", "tiny-gemma4kv"}) {
    const auto tokenizer = load_tokenizer(model);
    ASSERT_NE(tokenizer, nullptr);
    for (const char* unit : units) {
      std::string text;
      while (text.size() < (1u << 20)) text += unit;
      text += "x";
      EXPECT_TRUE(decode(*tokenizer, encode(*tokenizer, text)) == text) << model << " " << unit;
    }
  }
}

TEST(Tokenizer, AMillionCombiningMarksAreOrderedAndComeBack) {
  const auto tokenizer = load_tokenizer("tiny-qwen35");
  ASSERT_NE(tokenizer, nullptr);
  std::string text = "q", ordered = "q";
  for (int i = 0; i < 250000; ++i) text += "\xCC\x81\xCC\x96";  // class 230, then 220
  for (int i = 0; i < 250000; ++i) ordered += "\xCC\x96";
  for (int i = 0; i < 250000; ++i) ordered += "\xCC\x81";
  EXPECT_TRUE(decode(*tokenizer, encode(*tokenizer, text)) == ordered);
}

}  // namespace
}  // namespace sharpi
