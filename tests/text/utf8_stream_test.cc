// SPDX-License-Identifier: MIT
#include "text/utf8_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "text/utf8.h"

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
      EXPECT_EQ(stream.held(), 0u);
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

TEST(Utf8Stream, RandomBytesInRandomPartsComeOutUnchangedAndAtMostThreeWait) {
  std::mt19937 random(1);
  const unsigned char palette[] = {0x00, 0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2,
                                   0xDF, 0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  for (int round = 0; round < 2000; ++round) {
    Utf8Stream stream;
    std::string fed, out;
    for (auto parts = random() % 8; parts > 0; --parts) {
      std::string part;
      for (auto n = random() % 6; n > 0; --n) {
        part.push_back(static_cast<char>(palette[random() % sizeof palette]));
      }
      fed += part;
      stream.push(part, &out);
      ASSERT_LE(stream.held(), 3u);
      ASSERT_EQ(out + fed.substr(out.size()), fed);
      ASSERT_EQ(out.size() + stream.held(), fed.size());
    }
    stream.flush(&out);
    ASSERT_EQ(out, fed);
    ASSERT_EQ(stream.held(), 0u);
  }
}

TEST(Utf8Stream, BytesThatCannotBecomeACharacterDoNotWait) {
  for (const char* bytes : {"\x80", "\xBF\x80", "\xC0", "\xC1", "\xF5", "\xFF", "\xE0\x80",
                            "\xED\xA0", "\xF0\x8F", "\xF4\x90",
                            "a\xC2"
                            "b",
                            "\xE4\xBD\xBD\xBD"}) {
    Utf8Stream stream;
    std::string out;
    stream.push(bytes, &out);
    EXPECT_EQ(out, bytes);
  }
}

TEST(Utf8Stream, FlushGivesTheIncompleteTailOnce) {
  Utf8Stream stream;
  std::string out;
  stream.push("x\xF0\x9F\x98", &out);
  EXPECT_EQ(out, "x");
  EXPECT_EQ(stream.held(), 3u);
  stream.flush(&out);
  stream.flush(&out);
  EXPECT_EQ(out, "x\xF0\x9F\x98");
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
