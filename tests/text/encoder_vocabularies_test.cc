// SPDX-License-Identifier: MIT
// Tokenizers of encoders, WordPiece and the unigram model, over vocabularies made in memory; pairs
// of texts for rerankers.
#include <gtest/gtest.h>

#include <cstring>

#include "text/charsmap.h"
#include "text/rank_prompt.h"
#include "text/vocabulary_file.h"

namespace sharpi {
namespace {

constexpr const char* kMark = "\u2581";

/// [CLS], [SEP], [UNK] and whole and further pieces of words.
struct WordPieceFile : VocabularyFile {
  int32_t cls, sep, unk;
  WordPieceFile() {
    model = "bert";
    pre = "default";
    unk = add("[UNK]", TokenKind::kUnknown);
    cls = add("[CLS]", TokenKind::kControl);
    sep = add("[SEP]", TokenKind::kControl);
    writer.value("tokenizer.ggml.cls_token_id", static_cast<uint32_t>(cls));
    writer.value("tokenizer.ggml.seperator_token_id", static_cast<uint32_t>(sep));
    writer.value("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(unk));
  }
  int32_t word(const std::string& text) { return add(kMark + text); }
};

TEST(WordPiece, TheLongestPieceFirstAndAWordWithoutPiecesIsUnknown) {
  WordPieceFile v;
  const int32_t un = v.word("un"), una = v.word("una"), aff = v.add("aff"), able = v.add("able");
  const int32_t dot = v.word(".");
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  EXPECT_EQ(encode(*loaded.tokenizer, "unaffable."), (Ids{v.unk, dot}));  // una, ff: no way back
  EXPECT_EQ(encode(*loaded.tokenizer, "unable"), (Ids{v.unk}));
  EXPECT_EQ(encode(*loaded.tokenizer, "un.una"), (Ids{un, dot, una}));
  EXPECT_EQ(encode(*loaded.tokenizer, "unaaffable"), (Ids{una, aff, able}));
  EXPECT_EQ(encode(*loaded.tokenizer, std::string(101, 'u')), (Ids{v.unk}));
  Ids ids;
  ASSERT_TRUE(loaded.tokenizer->encode("un", true, false, &ids).is_ok());
  EXPECT_EQ(ids, (Ids{v.cls, un, v.sep}));
}

TEST(WordPiece, TextIsCleanedFoldedAndParted) {
  WordPieceFile v;
  const int32_t ete = v.word("ete"), cat = v.word("cat"), han = v.word("\u4F60");
  const int32_t bang = v.word("!"), quote = v.word("\u201C");
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  const Tokenizer& t = *loaded.tokenizer;
  EXPECT_EQ(encode(t, "\u00C9t\u00C9"), (Ids{ete}));
  EXPECT_EQ(encode(t, "e\u0301te\u0301"), (Ids{ete}));
  EXPECT_EQ(encode(t, "C\u200BA\u0007T\r\n\tcat\u3000cat"), (Ids{cat, cat, cat}));
  EXPECT_EQ(encode(t, "cat\u4F60\u4F60cat!"), (Ids{cat, han, han, cat, bang}));
  EXPECT_EQ(encode(t, "\u201Ccat!!"), (Ids{quote, cat, bang, bang}));
  EXPECT_EQ(encode(t, "ca\xFFt \xC3"), (Ids{cat}));  // bytes that are no character
  EXPECT_EQ(encode(t, ""), Ids{});
  v.writer.value("tokenizer.ggml.normalizer.lowercase", false);
  const Loaded cased = load(v);
  EXPECT_EQ(encode(*cased.tokenizer, "CAT cat"), (Ids{v.unk, cat}));
}

TEST(WordPiece, AVocabularyWithoutUnknownOrSeparatorIsRefused) {
  VocabularyFile v;
  v.model = "bert";
  v.add("[CLS]", TokenKind::kControl);
  v.writer.value("tokenizer.ggml.cls_token_id", 0u);
  expect_refused(v, Code::kFormat, "EOS");
  v.add("[SEP]", TokenKind::kControl);
  v.writer.value("tokenizer.ggml.seperator_token_id", 1u);
  expect_refused(v, Code::kFormat, "[UNK]");
}

struct UnigramFile : VocabularyFile {
  std::vector<float> scores;
  UnigramFile() {
    model = "t5";
    pre = "default";
    piece("<s>", 0, TokenKind::kControl);
    piece("</s>", 0, TokenKind::kControl);
    piece("<unk>", 0, TokenKind::kUnknown);
    writer.value("tokenizer.ggml.bos_token_id", 0u);
    writer.value("tokenizer.ggml.eos_token_id", 1u);
    writer.value("tokenizer.ggml.unknown_token_id", 2u);
  }
  int32_t piece(const std::string& text, float score, TokenKind kind = TokenKind::kNormal) {
    scores.push_back(score);
    return add(text, kind);
  }
  Loaded loaded() {
    writer.array("tokenizer.ggml.scores", scores);
    return load(*this);
  }
};

TEST(Unigram, TheBestSumWinsAndUnknownCharactersInARowAreOneToken) {
  UnigramFile v;
  const int32_t mark = v.piece(kMark, -3), a = v.piece("a", -2), b = v.piece("b", -2);
  const int32_t ab = v.piece("ab", -3.5f), marked = v.piece(std::string(kMark) + "a", -4);
  const int32_t aab = v.piece("aab", -9);
  const Loaded loaded = v.loaded();
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  const Tokenizer& t = *loaded.tokenizer;
  EXPECT_EQ(encode(t, "ab"), (Ids{marked, b}));         // -6, not -3 - 3.5
  EXPECT_EQ(encode(t, "bab"), (Ids{mark, b, ab}));      // -8.5, not -9
  EXPECT_EQ(encode(t, "baab"), (Ids{mark, b, a, ab}));  // not aab
  EXPECT_EQ(encode(t, "  a\u00A0 b\n"), (Ids{marked, mark, b}));
  EXPECT_EQ(encode(t, "xyzb"), (Ids{mark, 2, b}));
  EXPECT_EQ(encode(t, " "), Ids{});
  Ids ids;
  ASSERT_TRUE(t.encode("a", true, false, &ids).is_ok());
  EXPECT_EQ(ids, (Ids{0, marked, 1}));
  (void)aab;
}

/// A trie with one entry of one byte: units of a root, a child, and its value.
std::string one_entry_map(uint8_t from, const std::string& to) {
  std::vector<uint32_t> units(512, 0x80000000u);
  units[0] = 256u << 10;                            // children of the root at 256 ^ label
  units[256 ^ from] = from | 1u << 8 | 128u << 10;  // has a value, 128 away
  units[(256 ^ from) ^ 128] = 0x80000000u;          // the value 0: replacement at 0
  const auto bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string out(sizeof bytes, '\0');
  std::memcpy(out.data(), &bytes, sizeof bytes);
  out.append(reinterpret_cast<const char*>(units.data()), bytes);
  return out + to + '\0';
}

TEST(CharsMap, ReplacesTheLongestEntryAndTrustsNoSize) {
  auto map = CharsMap::create(one_entry_map('#', "no"));
  ASSERT_TRUE(map.is_ok()) << map.status().text();
  EXPECT_EQ(map.value().apply("a#b##"), "anobnono");
  EXPECT_EQ(map.value().apply("\xFFz"), "\uFFFDz");
  auto none = CharsMap::create("");
  EXPECT_EQ(none.value().apply("a#b"), "a#b");
  const std::string whole = one_entry_map('#', "no");
  EXPECT_EQ(CharsMap::create(whole.substr(0, 3)).status().code(), Code::kFormat);
  EXPECT_EQ(CharsMap::create(whole.substr(0, 100)).status().code(), Code::kFormat);
  auto cut = CharsMap::create(whole.substr(0, whole.size() - 3));  // no replacement is left
  ASSERT_TRUE(cut.is_ok());
  EXPECT_EQ(cut.value().apply("#"), "#");
  for (size_t at = 4; at < 4 + 512 * 4; ++at) {  // whatever the units say
    std::string spoilt = whole;
    spoilt[at] = static_cast<char>(0xFF);
    auto any = CharsMap::create(spoilt);
    if (any.is_ok()) (void)any.value().apply("#a#\u00E9");
  }
}

TEST(RankPrompt, ControlTokensComeFromTheFormAlone) {
  VocabularyFile v;
  v.add_bytes();
  const int32_t start = v.add("<|im_start|>", TokenKind::kControl);
  const int32_t end = v.add("<|im_end|>", TokenKind::kControl);
  const Loaded loaded = load(v);
  ASSERT_TRUE(loaded.tokenizer) << loaded.status.text();
  auto file = GgufFile::open_memory(loaded.bytes->data(), loaded.bytes->size(), "vocabulary");
  Ids ids;
  uint32_t n_first = 0;
  const RankPair pair{"{document}<|im_end|>", "<|im_start|>", std::nullopt};
  ASSERT_TRUE(encode_pair(*loaded.tokenizer, *file.value(), pair, &ids, &n_first).is_ok());
  EXPECT_EQ(std::count(ids.begin(), ids.end(), start), 3);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 2);
  EXPECT_EQ(n_first, ids.size());
  VocabularyFile plain;
  plain.add_bytes();
  const Loaded other = load(plain);
  auto its_file = GgufFile::open_memory(other.bytes->data(), other.bytes->size(), "vocabulary");
  EXPECT_EQ(encode_pair(*other.tokenizer, *its_file.value(), pair, &ids, &n_first).code(),
            Code::kUnsupported);
}

}  // namespace
}  // namespace sharpi
