// SPDX-License-Identifier: MIT
#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"

namespace sharpi {
namespace {

// One, two, three and four bytes, at the edges of each length and around the surrogates.
const std::string kText =
    "a\x7F\xC2\x80\xDF\xBF\xE0\xA0\x80\xED\x9F\xBF\xEE\x80\x80\xEF\xBF\xBF"
    "\xF0\x90\x80\x80\xF0\x9F\x98\x80\xF4\x8F\xBF\xBFz";

bool whole_characters(std::string_view text) {
  return utf8_valid_prefix(text) == text.size();
}

TEST(Utf8Stream, EverySplitOfValidTextGivesWholeCharactersAndTheSameText) {
  for (size_t i = 0; i <= kText.size(); ++i) {
    for (size_t j = i; j <= kText.size(); ++j) {
      Utf8Stream stream;
      std::string all;
      for (const auto& part : {kText.substr(0, i), kText.substr(i, j - i), kText.substr(j)}) {
        std::string out;
        stream.push(part, &out);
        EXPECT_TRUE(whole_characters(out)) << i << " " << j;
        all += out;
      }
      EXPECT_EQ(stream.held(), "");
      EXPECT_EQ(all, kText);
    }
  }
}

TEST(Utf8Stream, ByteByByteEachCharacterAppearsWithItsLastByte) {
  Utf8Stream stream;
  std::string all;
  for (size_t i = 0; i < kText.size(); ++i) {
    stream.push(kText.substr(i, 1), &all);
    EXPECT_EQ(all.size(), utf8_valid_prefix(std::string_view(kText).substr(0, i + 1)));
  }
  EXPECT_EQ(all, kText);
}

/// Valid text with every byte that cannot become a character replaced, in one piece: the
/// recommended way, written down a second time.
std::string replaced(const std::string& bytes) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    size_t whole = utf8_character(bytes, at), bad = 1;
    if (whole == 0) {
      // The longest piece that some continuation would make a character.
      for (size_t n = 3; n > 1; --n) {
        if (at + n > bytes.size()) continue;
        const std::string piece = bytes.substr(at, n);
        bool begins = false;
        for (const char* end : {"\x80", "\xBF", "\x80\x80"})
          begins = begins || utf8_character(piece + end, 0) == (piece + end).size();
        if (begins && bad == 1) bad = n;
      }
      out += "\xEF\xBF\xBD";
    } else {
      out += bytes.substr(at, whole);
    }
    at += whole == 0 ? bad : whole;
  }
  return out;
}

TEST(Utf8Stream, RandomBytesInRandomPartsComeOutAsValidTextAndAtMostThreeWait) {
  std::mt19937 random(1);
  const unsigned char palette[] = {0x00, 0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2,
                                   0xDF, 0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  for (int round = 0; round < 4000; ++round) {
    Utf8Stream stream;
    std::string fed, out;
    for (auto parts = random() % 8; parts > 0; --parts) {
      std::string part;
      for (auto n = random() % 6; n > 0; --n) {
        part.push_back(static_cast<char>(palette[random() % sizeof palette]));
      }
      fed += part;
      stream.push(part, &out);
      ASSERT_LE(stream.held().size(), 3u);
      ASSERT_TRUE(whole_characters(out));
    }
    stream.flush(&out);
    ASSERT_EQ(out, replaced(fed));
    ASSERT_EQ(stream.held(), "");
  }
}

TEST(Utf8Stream, BytesThatCannotBecomeACharacterDoNotWait) {
  const std::string r = "\xEF\xBF\xBD";
  const std::pair<const char*, std::string> cases[] = {
      {"\x80", r},
      {"\xBF\x80", r + r},
      {"\xC0", r},
      {"\xC1", r},
      {"\xF5", r},
      {"\xFF", r},
      {"\xE0\x80", r + r},
      {"\xED\xA0", r + r},
      {"\xF0\x8F", r + r},
      {"\xF4\x90", r + r},
      {"a\xC2"
       "b",
       "a" + r + "b"},
      {"\xE4\xBD\xBD\xBD", "\xE4\xBD\xBD" + r},
      {"\xF0\x9F\x98z", r + "z"},
      {"\xE4\xBD\xE4\xBD\xBD", r + "\xE4\xBD\xBD"}};
  for (const auto& [bytes, text] : cases) {
    Utf8Stream stream;
    std::string out;
    stream.push(bytes, &out);
    EXPECT_EQ(out, text);
    EXPECT_EQ(stream.held(), "");
  }
}

TEST(Utf8Stream, FlushReplacesTheIncompleteTailOnce) {
  Utf8Stream stream;
  std::string out;
  stream.push("x\xF0\x9F\x98", &out);
  EXPECT_EQ(out, "x");
  EXPECT_EQ(stream.held(), "\xF0\x9F\x98");
  stream.flush(&out);
  stream.flush(&out);
  EXPECT_EQ(out, "x\xEF\xBF\xBD");
}

TEST(Utf8, EncodingAndDecodingAgreeForEveryCodePoint) {
  for (uint32_t cp = 0; cp <= 0x10FFFF; ++cp) {
    if (cp >= 0xD800 && cp < 0xE000) continue;
    std::string text;
    utf8_append(cp, &text);
    const uint32_t n = utf8_character(text, 0);
    ASSERT_EQ(n, text.size()) << cp;
    ASSERT_EQ(utf8_code_point(text, 0, n), cp);
    text.pop_back();
    if (text.empty()) continue;
    ASSERT_EQ(utf8_character(text, 0), 0u) << cp;
  }
}

TEST(Utf8, SurrogatesAreNoCharacters) {
  for (uint32_t cp = 0xD800; cp < 0xE000; ++cp) {
    std::string text;
    utf8_append(cp, &text);
    ASSERT_EQ(utf8_character(text, 0), 0u) << cp;
  }
}

TEST(Utf8, ValidPrefixEndsAtTheFirstBadByte) {
  for (size_t before = 0; before < 20; ++before) {
    const std::string good(before, 'a');
    EXPECT_EQ(utf8_valid_prefix(good), before);
    EXPECT_EQ(utf8_valid_prefix(good + "\xFF" + good), before);
    EXPECT_EQ(utf8_valid_prefix(good + "\xC3\xA9\xC3"), before + 2);
  }
}

}  // namespace
}  // namespace sharpi
