// SPDX-License-Identifier: MIT
#include "text/normalize.h"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <random>

#include "base/utf8.h"
#include "text/pretokenizer.h"

namespace sharpi {
namespace {

std::string nfc(std::string_view text) {
  std::string storage = "stale";
  std::string_view out;
  EXPECT_TRUE(normalize_nfc(text, &storage, &out).is_ok());
  return std::string(out);
}

/// The library's own normalisation of the whole text at once.
std::string reference(const std::string& text) {
  struct Free {
    void operator()(utf8proc_uint8_t* p) const { std::free(p); }
  };
  utf8proc_uint8_t* raw = nullptr;
  const auto n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                              static_cast<utf8proc_ssize_t>(text.size()), &raw,
                              static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owned(raw);
  EXPECT_GE(n, 0);
  return n < 0 ? std::string() : std::string(reinterpret_cast<char*>(raw), static_cast<size_t>(n));
}

std::vector<utf8proc_int32_t> decomposition(uint32_t cp) {
  utf8proc_int32_t parts[8];
  int boundclass = 0;
  const auto n = utf8proc_decompose_char(
      static_cast<utf8proc_int32_t>(cp), parts, 8,
      static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &boundclass);
  EXPECT_GE(n, 1);
  EXPECT_LE(n, 8);
  return {parts, parts + n};
}

bool is_character(uint32_t cp) {
  return cp < 0xD800 || cp > 0xDFFF;
}

TEST(Nfc, InertCharactersAreStableStartersThatJoinNothingBeforeThem) {
  for (uint32_t cp = 0; cp <= 0x10FFFF; ++cp) {
    if (!is_character(cp)) continue;
    if (is_nfc_inert(cp)) {
      std::string text;
      utf8_append(cp, &text);
      ASSERT_EQ(reference(text), text) << std::hex << cp;
      ASSERT_EQ(utf8proc_get_property(static_cast<utf8proc_int32_t>(cp))->combining_class, 0);
    }
    // Whatever follows the first part of some decomposition may be joined to what precedes it.
    const auto parts = decomposition(cp);
    for (size_t i = 1; i < parts.size(); ++i) {
      ASSERT_FALSE(is_nfc_inert(static_cast<uint32_t>(parts[i]))) << std::hex << cp;
    }
  }
}

TEST(Nfc, EqualsTheLibraryOnRandomMixtures) {
  const uint32_t palette[] = {
      'a',    'e',     ' ',    0xE9,  0x301,  0x300,  0x316,  0x327,  0x308,  0x344,   0x340,
      0x212B, 0x2126,  0x1E9B, 0x323, 0x1100, 0x1161, 0x11A8, 0xAC00, 0xAC01, 0xD55C,  0x304B,
      0x3099, 0x304C,  0x915,  0x93C, 0x958,  0x9C7,  0x9BE,  0xFB1D, 0x5B4,  0x1D15E, 0x1D165,
      0x4F60, 0x1F600, 0x2ADC, 0x338, 0xF73,  0xF71,  0xF72,  0x3B1,  0x342,  0x345,   0x1F70};
  std::mt19937 random(2);
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (auto n = random() % 12; n > 0; --n) {
      utf8_append(palette[random() % std::size(palette)], &text);
    }
    ASSERT_EQ(nfc(text), reference(text)) << "round " << round;
  }
}

TEST(Nfc, EqualsTheLibraryOnEveryCharacterBetweenNeighbours) {
  for (uint32_t cp = 0; cp <= 0x10FFFF; ++cp) {
    if (!is_character(cp)) continue;
    std::string text = "e";
    utf8_append(cp, &text);
    text += "\xCC\x81z";
    const bool known = !is_nfc_unknown(cp);
    ASSERT_EQ(nfc(text), known ? reference(text) : text) << std::hex << cp;
  }
}

// As HF tokenizers 0.23 normalise.
TEST(Nfc, MarksThatAreNewerThanTheReferencesTablesAreLetters) {
  EXPECT_EQ(nfc("a\u1DF6\u0300"), "a\u1DF6\u0300");  // class 232, then 230
  EXPECT_EQ(nfc("a\u064E\u08CA\u0300"), "a\u064E\u08CA\u0300");
  EXPECT_EQ(nfc("e\u07FD\u0301\u0316"), "e\u07FD\u0316\u0301");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(nfc("\U00011938"), "\U00011938");
}

TEST(Nfc, UnchangedTextIsNotCopied) {
  const std::string text = "plain, caf\xC3\xA9, \xE4\xBD\xA0\xE5\xA5\xBD";
  std::string storage;
  std::string_view out;
  ASSERT_TRUE(normalize_nfc(text, &storage, &out).is_ok());
  EXPECT_EQ(out.data(), text.data());
  EXPECT_EQ(out, text);
}

TEST(Nfc, TextThatShrinksToNothingNewKeepsItsStart) {
  EXPECT_EQ(nfc("\xCC\x81"), "\xCC\x81");
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("e\xCC\x81"), "\xC3\xA9");
  EXPECT_EQ(nfc("abce\xCC\x81xyz"), "abc\xC3\xA9xyz");
}

TEST(Nfc, TheVowelBeforeTrailingConsonantsStays) {
  EXPECT_EQ(nfc("\uAC00\u11A7"), "\uAC00\u11A7");
  EXPECT_EQ(nfc("\u1100\u1161\u11A7"), "\uAC00\u11A7");
  EXPECT_EQ(nfc("\uAC00\u11A7\u0301e\u0301\u11A7"), "\uAC00\u11A7\u0301\u00E9\u11A7");
  EXPECT_EQ(nfc("\uAC00\u11A8"), "\uAC01");
}

std::vector<std::string> pieces_of(const char* family, std::string_view text) {
  auto pre = PreTokenizer::create(family);
  EXPECT_TRUE(pre.is_ok()) << pre.status().text();
  auto matcher = PreTokenizer::Matcher::create(pre.value());
  EXPECT_TRUE(matcher.is_ok());
  matcher.value().start(text);
  std::vector<std::string> out;
  for (std::string_view piece = "-"; !piece.empty();) {
    EXPECT_TRUE(matcher.value().next(&piece).is_ok());
    if (!piece.empty()) out.emplace_back(piece);
  }
  return out;
}

// Letters and numbers as Unicode 16 has them; version 14, which PCRE2 may know, calls these
// unassigned, and the pieces would be others.
TEST(PreTokenizer, CharactersThatAreNewerThanPcre2AreLettersAndNumbers) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces_of("qwen2", " \U0001E4D0a\U000105C0b!"),
            (Pieces{" \U0001E4D0a\U000105C0b", "!"}));
  EXPECT_EQ(pieces_of("qwen2", "\U00031350\U0002EBF0"), (Pieces{"\U00031350\U0002EBF0"}));
  EXPECT_EQ(pieces_of("qwen2", "a\U00011F50\U00011F51"), (Pieces{"a", "\U00011F50", "\U00011F51"}));
  EXPECT_EQ(pieces_of("olmo", "a\U00011F50\U00011F51"), (Pieces{"a", "\U00011F50\U00011F51"}));
  EXPECT_EQ(pieces_of("deepseek-r1-qwen", "a\U000105C0b1"), (Pieces{"a\U000105C0b", "1"}));
  EXPECT_EQ(pieces_of("smollm", "a\U00011F50\U00011F51"),
            (Pieces{"a", "\U00011F50", "\U00011F51"}));
  EXPECT_EQ(pieces_of("qwen35", "a\U00011F00b"), (Pieces{"a\U00011F00b"}));
}

// As HF tokenizers split it by the published patterns (tools/compare_tokenizers.py has them).
TEST(PreTokenizer, FamiliesSplitByTheirPublishedPatterns) {
  using Pieces = std::vector<std::string>;
  const char* text =
      "HelloWorld ABCdef don't I'LL 12345 a/b//\n\n  x \u65E5\u672C\u30FB\u8A9E1\u30AB\u309B -ab "
      "\x01\x01z e\u0301";
  EXPECT_EQ(pieces_of("tekken", text), (Pieces{"Hello",
                                               "World",
                                               " ABCdef",
                                               " don",
                                               "'t",
                                               " I",
                                               "'LL",
                                               " ",
                                               "1",
                                               "2",
                                               "3",
                                               "4",
                                               "5",
                                               " a",
                                               "/b",
                                               "//\n\n",
                                               " ",
                                               " x",
                                               " \u65E5\u672C",
                                               "\u30FB\u8A9E",
                                               "1",
                                               "\u30AB",
                                               "\u309B",
                                               " -",
                                               "ab",
                                               " \x01\x01",
                                               "z",
                                               " e\u0301"}));
  EXPECT_EQ(pieces_of("gpt-4o", text), (Pieces{"Hello",        "World",
                                               " ABCdef",      " don't",
                                               " I'LL",        " ",
                                               "123",          "45",
                                               " a",           "/b",
                                               "//\n\n",       " ",
                                               " x",           " \u65E5\u672C",
                                               "\u30FB\u8A9E", "1",
                                               "\u30AB",       "\u309B",
                                               " -",           "ab",
                                               " \x01\x01",    "z",
                                               " e\u0301"}));
  EXPECT_EQ(pieces_of("deepseek-v3", text),
            (Pieces{"HelloWorld", " ABCdef",      " don",   "'t",     " I",     "'LL",     " ",
                    "123",        "45",           " a",     "/b",     "//\n\n", " ",       " x",
                    " ",          "\u65E5\u672C", "\u30FB", "\u8A9E", "1",      "\u30AB",  "\u309B",
                    " -",         "ab",           " ",      "\x01",   "\x01z",  " e\u0301"}));
}

// Families of several patterns: what one leaves whole, the next cuts, and what it matched too.
TEST(PreTokenizer, EveryPatternCutsWhatTheOnesBeforeItLeft) {
  using Pieces = std::vector<std::string>;
  const char* text = "It's $5, 12345!  x``y  ";
  EXPECT_EQ(pieces_of("default", text), (Pieces{"It", "'", "s", " ", "$", "5", ",", " ", "123",
                                                "45", "!", " ", " x", "``", "y", "  "}));
  EXPECT_EQ(pieces_of("falcon", text), (Pieces{"It", "'", "s", " ", "$", "5", ",", " ", "123", "45",
                                               "!", " ", " x", "``", "y", "  "}));
  const char* lines = "Stra\u00DFe \u65E5\u672Cx 12 \u0905!\n\n  end  ";
  // Published so: from the colon to the tilde there are letters too.
  EXPECT_EQ(pieces_of("deepseek-llm", lines),
            (Pieces{"Stra", "\u00DF", "e", " ", "\u65E5\u672C", "x", " ", "12", " ", "\u0905", "!",
                    "\n", "\n", " ", " end", "  "}));
  EXPECT_EQ(pieces_of("deepseek-coder", lines),
            (Pieces{"Stra\u00DFe", " ", "\u65E5\u672C", "x", " ", "1", "2", " ", "\u0905", "!",
                    "\n", "\n", " ", " end", "  "}));
}

struct Names {
  const char* family;
  std::vector<const char*> aliases;
};
const Names kNames[] = {
    {"qwen2", {"deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"}},
    {"qwen35", {}},
    {"olmo", {}},
    {"llama-bpe", {"llama3", "llama-v3"}},
    {"dbrx", {"smaug-bpe", "glm4", "chatglm-bpe"}},
    {"smollm", {"starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}},
    {"gpt-2", {"phi-2", "gigachat", "mellum", "mpt", "jais", "trillion", "granite-docling"}},
    {"tekken", {}},
    {"gpt-4o", {"llama4", "kanana2"}},
    {"deepseek-v3", {"hunyuan-dense"}},
    {"default", {}},
    {"falcon", {}},
    {"deepseek-llm", {}},
    {"deepseek-coder", {}},
    {"seed-coder", {}},
};
/// Every two families split it into other pieces, or treat the pieces in another way.
constexpr const char* kTelling =
    "It'S 12345 caf\u00E9s,  e\u0301\u0915\u093F\n\n  x\t'll we'LL\r\n!!``$a";

bool same_family(const char* a, const char* b) {
  const auto one = PreTokenizer::create(a), other = PreTokenizer::create(b);
  EXPECT_TRUE(one.is_ok() && other.is_ok()) << a << " " << b;
  if (!one.is_ok() || !other.is_ok()) return false;
  return pieces_of(a, kTelling) == pieces_of(b, kTelling) &&
         one.value().nfc() == other.value().nfc() &&
         one.value().whole_pieces() == other.value().whole_pieces() &&
         one.value().default_bos() == other.value().default_bos();
}

TEST(PreTokenizer, AliasesAreTheFamilyThatTheyName) {
  std::string listed;
  for (const Names& n : kNames) {
    listed += std::string(listed.empty() ? "" : " ") + n.family;
    for (const char* alias : n.aliases) {
      EXPECT_TRUE(same_family(alias, n.family)) << alias;
      listed += std::string(" ") + alias;
    }
    for (const Names& other : kNames) {
      EXPECT_EQ(same_family(n.family, other.family), &n == &other) << n.family << other.family;
    }
  }
  // The refusal lists all names that are known, so none is left out above.
  const auto unknown = PreTokenizer::create("llama");
  ASSERT_FALSE(unknown.is_ok());
  EXPECT_EQ(unknown.status().code(), Code::kUnsupported);
  EXPECT_EQ(unknown.status().text(), "pre-tokenizer \"llama\" is not one of these: " + listed);
}

}  // namespace
}  // namespace sharpi
