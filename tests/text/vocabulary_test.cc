// SPDX-License-Identifier: MIT
// Tokenizers over vocabularies made in memory: what files may say, and the merge procedure against
// a plain reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "text/vocabulary_file.h"

namespace sharpi {
namespace {

VocabularyFile gemma_file() {
  VocabularyFile v;
  v.model = "gemma4";
  v.pre.clear();
  v.add_bytes();
  const int32_t bos = v.add("<bos>", TokenKind::kControl);
  v.writer.value("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
  return v;
}

TEST(Vocabulary, AByteWithoutATokenIsDroppedWhereBytesAreSpelled) {
  VocabularyFile v;
  const int32_t a = v.add("a"), b = v.add("b");
  const int32_t ab = v.add_merge("a", "b");
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.status.is_ok()) << loaded.status.text();
  EXPECT_EQ(encode(*loaded.tokenizer, "ab"), Ids{ab});
  EXPECT_EQ(encode(*loaded.tokenizer, "a!b?"), (Ids{a, b}));
  EXPECT_EQ(encode(*loaded.tokenizer, "a\u00e9b\xff"), Ids{ab});
  EXPECT_EQ(encode(*loaded.tokenizer, "???"), Ids{});
}

TEST(Vocabulary, UnknownModelsAndPreTokenizersAreNamed) {
  VocabularyFile v;
  v.add_bytes().model = "rwkv";
  expect_refused(v, Code::kUnsupported, "\"rwkv\"");
  v.model = "gpt2";
  v.pre = "superbpe";
  expect_refused(v, Code::kUnsupported, "\"superbpe\"");
  v.pre.clear();
  expect_refused(v, Code::kUnsupported, "tokenizer.ggml.pre");
}

TEST(Vocabulary, ArraysThatDoNotFitAreMalformed) {
  VocabularyFile empty;
  expect_refused(empty, Code::kFormat, "tokenizer.ggml.tokens");
  VocabularyFile types;
  types.add_bytes().types.pop_back();
  expect_refused(types, Code::kFormat, "255 entries, but there are 256");
  types.types.push_back(7);
  expect_refused(types, Code::kFormat, "token_type[255] is 7");
  for (const char* merge : {"", "ab", " ", "a ", " a"}) {
    VocabularyFile v;
    v.add_bytes().merges = {"a b", merge};
    expect_refused(v, Code::kFormat, "merges[1]");
  }
}

TEST(Vocabulary, IdsBeyondTheTokensAreMalformed) {
  for (const char* key : {"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id"}) {
    VocabularyFile v;
    v.add_bytes().writer.value(std::string("tokenizer.ggml.") + key, 256u);
    expect_refused(v, Code::kFormat, key);
  }
  VocabularyFile v;
  v.add_bytes().writer.array("tokenizer.ggml.suppress_tokens", std::vector<int32_t>{3, 256});
  expect_refused(v, Code::kFormat, "suppress_tokens");
}

TEST(Vocabulary, TextsCannotBeginWithABosThatIsNotThere) {
  VocabularyFile v;
  v.add_bytes().writer.value("tokenizer.ggml.add_bos_token", true);
  expect_refused(v, Code::kFormat, "bos_token_id");
  VocabularyFile gemma;
  gemma.model = "gemma4";
  gemma.add_bytes();
  expect_refused(gemma, Code::kFormat, "bos_token_id");
}

TEST(Vocabulary, BosAndEosAreAddedAsTheFileAsks) {
  VocabularyFile v;
  v.add_bytes().writer.value("tokenizer.ggml.add_bos_token", true);
  v.writer.value("tokenizer.ggml.add_eos_token", true);
  v.writer.value("tokenizer.ggml.bos_token_id", 256u).value("tokenizer.ggml.eos_token_id", 257u);
  v.add("<s>");
  v.add("</s>");
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  Ids ids;
  ASSERT_TRUE(loaded.tokenizer->encode("a", true, true, &ids).is_ok());
  EXPECT_EQ(ids, (Ids{256, 'a', 257}));
  EXPECT_EQ(encode(*loaded.tokenizer, "a"), Ids{'a'});
  EXPECT_TRUE(loaded.tokenizer->is_end_of_generation(257));
  EXPECT_FALSE(loaded.tokenizer->is_end_of_generation(256));
}

TEST(Vocabulary, ARoleDoesNotTakeATokenOutOfTheText) {
  VocabularyFile v;  // files exist whose BOS is an ordinary token
  v.add_bytes().writer.value("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(','));
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  std::string text;
  for (const int32_t id : encode(*loaded.tokenizer, "a,b")) {
    ASSERT_TRUE(loaded.tokenizer->decode(id, false, &text).is_ok());
  }
  EXPECT_EQ(text, "a,b");
}

TEST(Vocabulary, KnownControlTokensAreControlWhateverTheirType) {
  VocabularyFile v;
  v.add_bytes();
  const int32_t turn = v.add("<|turn>"), tool = v.add("<|tool_response>", TokenKind::kUserDefined);
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_EQ(encode(*loaded.tokenizer, "<|turn><|tool_response>"), (Ids{turn, tool}));
  for (const int32_t id : encode(*loaded.tokenizer, "<|turn><|tool_response>", false)) {
    EXPECT_LT(id, 256);
  }
}

TEST(Vocabulary, UnusedAndSuppressedTokensAreNeverSampled) {
  VocabularyFile v;
  v.add_bytes();
  v.add("[PAD256]", TokenKind::kUnused);
  v.writer.array("tokenizer.ggml.suppress_tokens", std::vector<int32_t>{9, 256, 3});
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_EQ(loaded.tokenizer->never_sample(), (Ids{3, 9, 256}));
  std::string text;
  ASSERT_TRUE(loaded.tokenizer->decode(256, false, &text).is_ok());
  EXPECT_EQ(text, "");
}

TEST(Vocabulary, EndTokensAreFoundByTextAndByKey) {
  VocabularyFile v;
  v.add_bytes();
  const int32_t by_text = v.add("<|im_end|>"), by_key = v.add("<eot>"), other = v.add("<x>");
  v.writer.value("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(by_key));
  v.writer.value("tokenizer.ggml.eos_token_id", UINT32_MAX);  // "none", as converters write it
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_TRUE(loaded.tokenizer->is_end_of_generation(by_text));
  EXPECT_TRUE(loaded.tokenizer->is_end_of_generation(by_key));
  EXPECT_FALSE(loaded.tokenizer->is_end_of_generation(other));
  EXPECT_EQ(loaded.tokenizer->eos(), -1);
}

TEST(Vocabulary, ATurnOfSeveralMessagesEndsWithItsAnswerOrACall) {
  VocabularyFile v;  // gpt-oss, whose files name one end, or two of which one ends messages
  v.add_bytes();
  const int32_t message = v.add("<|end|>"), answer = v.add("<|return|>"), call = v.add("<|call|>");
  v.writer.value("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(answer));
  v.writer.value("tokenizer.ggml.eot_token_id", static_cast<uint32_t>(message));
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_TRUE(loaded.tokenizer->is_end_of_generation(answer));
  EXPECT_TRUE(loaded.tokenizer->is_end_of_generation(call));
  EXPECT_FALSE(loaded.tokenizer->is_end_of_generation(message));
  for (const int32_t id : encode(*loaded.tokenizer, "<|end|><|call|>", false)) EXPECT_LT(id, 256);
}

TEST(Vocabulary, AMessageIsATurnWhereNothingElseEndsOne) {
  VocabularyFile v;  // Phi, whose files name the end of texts only
  v.add_bytes();
  const int32_t text = v.add("<|endoftext|>"), turn = v.add("<|end|>");
  v.writer.value("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(text));
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_TRUE(loaded.tokenizer->is_end_of_generation(text));
  EXPECT_TRUE(loaded.tokenizer->is_end_of_generation(turn));
}

TEST(Vocabulary, TheDefaultChatTemplateIsChosen) {
  VocabularyFile none, plain, named, first, broken;
  none.add_bytes();
  plain.add_bytes().writer.value("tokenizer.chat_template", "plain");
  plain.writer.array("tokenizer.chat_templates", Strings{"default"});
  plain.writer.value("tokenizer.chat_template.default", "d");
  named.add_bytes().writer.array("tokenizer.chat_templates", Strings{"tools", "default"});
  named.writer.value("tokenizer.chat_template.tools", "t");
  named.writer.value("tokenizer.chat_template.default", "d");
  first.add_bytes().writer.array("tokenizer.chat_templates", Strings{"tools"});
  first.writer.value("tokenizer.chat_template.tools", "t");
  broken.add_bytes().writer.array("tokenizer.chat_templates", Strings{"tools"});
  EXPECT_EQ(load(none).tokenizer->chat_template(), "");
  const Loaded p = load(plain), n = load(named), f = load(first);
  EXPECT_EQ(p.tokenizer->chat_template(), "plain");
  EXPECT_EQ(n.tokenizer->chat_template(), "d");
  EXPECT_EQ(f.tokenizer->chat_template(), "t");
  expect_refused(broken, Code::kFormat, "tools");
}

TEST(Gemma, AByteWithoutATokenIsAnErrorAndLeavesTheOutputAlone) {
  VocabularyFile v;
  v.model = "gemma4";
  v.pre.clear();
  const int32_t bos = v.add("<bos>", TokenKind::kControl);
  v.writer.value("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(bos));
  v.add("a");
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  Ids ids = {7};
  const Status status = loaded.tokenizer->encode("aab", false, false, &ids);
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_NE(status.text().find("0x62"), std::string::npos) << status.text();
  EXPECT_EQ(ids, Ids{7});
}

TEST(Vocabulary, MergesOfTextsThatAreNoTokensAreWithoutEffect) {
  VocabularyFile v;
  v.add_bytes().merges = {"a b", "zz b", "a zz"};  // "ab" and "zz" are no tokens
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_EQ(encode(*loaded.tokenizer, "ab"), (Ids{'a', 'b'}));
}

TEST(Special, TheLeftmostAndThereTheLongestTokenWins) {
  VocabularyFile v;
  v.add_bytes();
  const auto user = TokenKind::kUserDefined;
  const int32_t ab = v.add("ab", user), abcd = v.add("abcd", user), bc = v.add("bc", user);
  const int32_t spaces4 = v.add("    ", user), spaces2 = v.add("  ", user);
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  const Tokenizer& t = *loaded.tokenizer;
  EXPECT_EQ(encode(t, "abc"), (Ids{ab, 'c'}));
  EXPECT_EQ(encode(t, "abcdbc"), (Ids{abcd, bc}));
  EXPECT_EQ(encode(t, "abcab"), (Ids{ab, 'c', ab}));
  EXPECT_EQ(encode(t, "aab"), (Ids{'a', ab}));
  EXPECT_EQ(encode(t, "       x"), (Ids{spaces4, spaces2, ' ', 'x'}));
}

TEST(Special, AnAbsurdlyLongSpecialTokenIsMalformed) {
  VocabularyFile v;
  v.add_bytes().add(std::string(513, 'x'), TokenKind::kControl);
  expect_refused(v, Code::kFormat, "513 bytes");
}

TEST(Gemma, ARunOfNewlinesThatIsATokenIsThatToken) {
  VocabularyFile v = gemma_file();
  v.add("\n");
  const int32_t two = v.add_merge("\n", "\n");
  const int32_t five = v.add("\n\n\n\n\n");  // in the vocabulary, but no merge makes it
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  const int32_t one = two - 1;
  EXPECT_EQ(encode(*loaded.tokenizer, "\n\n\n\n\n"), Ids{five});
  EXPECT_EQ(encode(*loaded.tokenizer, "\n\n\n"), (Ids{two, one}));
}

TEST(Gemma, SpacesAreMarkersAndUnknownCharactersAreBytes) {
  VocabularyFile v = gemma_file();
  const int32_t a = v.add("a"), marker = v.add("\xE2\x96\x81");
  const int32_t marker_a = v.add_merge("\xE2\x96\x81", "a");
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  const Tokenizer& t = *loaded.tokenizer;
  EXPECT_EQ(encode(t, " a a  a"), (Ids{marker_a, marker_a, marker, marker_a}));
  EXPECT_EQ(encode(t, "a\xC3\xA9\xFF"), (Ids{a, 0xC3, 0xA9, 0xFF}));
  std::string text;
  for (const int32_t id : {marker_a, marker, 0xC3, 0xA9}) {
    ASSERT_TRUE(t.decode(id, false, &text).is_ok());
  }
  EXPECT_EQ(text, " a \xC3\xA9");
}

TEST(Gemma, AByteTokenWithAnotherTextIsMalformed) {
  VocabularyFile v = gemma_file();
  v.add("<0xG0>", TokenKind::kByte);
  expect_refused(v, Code::kFormat, "<0xXX>");
}

/// The procedure in its plainest form: find the pair of lowest rank, leftmost first, and join it.
Ids reference_merge(const VocabularyFile& v, std::string_view word) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t r = 0; r < v.merges.size(); ++r) {
    const size_t space = v.merges[r].find(' ', 1);
    ranks.try_emplace({v.merges[r].substr(0, space), v.merges[r].substr(space + 1)}, r);
  }
  Strings parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find({parts[i], parts[i + 1]});
      if (it == ranks.end() || it->second >= best) continue;
      best = it->second;
      at = i;
    }
    if (best == SIZE_MAX) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) {
    const auto it = std::find(v.tokens.begin(), v.tokens.end(), part);
    ids.push_back(static_cast<int32_t>(it - v.tokens.begin()));
  }
  return ids;
}

TEST(Merges, EqualThePlainProcedureOnRandomVocabulariesAndWords) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    VocabularyFile v;
    v.add_bytes();
    Strings pool = {"a", "b", "c"};
    for (int n = 0; n < 40; ++n) {
      const std::string left = pool[random() % pool.size()], right = pool[random() % pool.size()];
      const bool known =
          std::find(v.tokens.begin(), v.tokens.end(), left + right) != v.tokens.end();
      if (left.size() + right.size() > 12) continue;
      if (known) {
        v.merges.push_back(left + " " + right);  // a second way to the token, or a repeated rule
      } else {
        v.add_merge(left, right);
        pool.push_back(left + right);
      }
    }
    const Loaded loaded = load(v);
    ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
    for (int n = 0; n < 100; ++n) {
      std::string word;  // letters only: one piece of the pre-tokenizer
      for (auto length = random() % 40; length > 0; --length) {
        word.push_back(static_cast<char>('a' + random() % 3));
      }
      ASSERT_EQ(encode(*loaded.tokenizer, word), reference_merge(v, word)) << word;
    }
  }
}

TEST(Merges, AMergeWhoseLeftPartIsASpaceSplitsAtTheSecondSpace) {
  VocabularyFile v = gemma_file();
  v.add(" ");
  v.add("x");
  v.merges.push_back("  x");  // " " and "x"
  const int32_t joined = v.add(" x");
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  std::string text;
  ASSERT_TRUE(loaded.tokenizer->decode(joined, false, &text).is_ok());
  EXPECT_EQ(text, " x");
}

TEST(Vocabulary, RealSizesLoadAndEncode) {
  // The size of Qwen3's: every 2- and 3-letter merge over the 52 letters.
  VocabularyFile v;
  v.add_bytes();
  Strings alphabet;
  for (char c = 'A'; c <= 'Z'; ++c) alphabet.emplace_back(1, c);
  for (char c = 'a'; c <= 'z'; ++c) alphabet.emplace_back(1, c);
  for (const std::string& a : alphabet) {
    for (const std::string& b : alphabet) v.add_merge(a, b);
  }
  for (const std::string& a : alphabet) {
    for (const std::string& b : alphabet) {
      for (const std::string& c : alphabet) v.add_merge(a + b, c);
    }
  }
  while (v.tokens.size() < 151936) {
    v.add("[PAD" + std::to_string(v.tokens.size()) + "]", TokenKind::kUnused);
  }
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_EQ(loaded.tokenizer->n_vocab(), 151936u);
  const Ids ids = encode(*loaded.tokenizer, "AAAAAAA");
  Strings texts;
  for (const int32_t id : ids) texts.emplace_back(loaded.tokenizer->raw_text(id));
  EXPECT_EQ(texts, (Strings{"AA", "AA", "AAA"}));
}

}  // namespace
}  // namespace sharpi
