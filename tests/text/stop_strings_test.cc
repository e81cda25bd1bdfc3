// SPDX-License-Identifier: MIT
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "sharpi.h"

namespace sharpi {
namespace {

/// What comes out of a stream that gets `text` in pieces of `piece` bytes, then the end.
std::string streamed(const std::string& text, const std::vector<const char*>& stops, size_t piece,
                     sharpi_stop_stream* stream) {
  *stream = {};
  std::string out;
  sharpi_error e = SHARPI_ERROR_INIT;
  const auto push = [&](const char* at, size_t n) {
    char buffer[512];
    size_t length = 0;
    ASSERT_EQ(sharpi_stop_stream_push(stream, stops.data(), static_cast<uint32_t>(stops.size()), at,
                                      n, buffer, sizeof buffer, &length, &e),
              SHARPI_OK)
        << e.text;
    out.append(buffer, length);
  };
  for (size_t at = 0; at < text.size(); at += piece) {
    push(text.data() + at, std::min(piece, text.size() - at));
    push(nullptr, 0);
  }
  push(nullptr, 0);  // an empty piece, as a token inside a character gives, changes nothing
  char buffer[SHARPI_STOP_BYTES];
  size_t length = 0;
  EXPECT_EQ(sharpi_stop_stream_finish(stream, buffer, sizeof buffer, &length, &e), SHARPI_OK);
  out.append(buffer, length);
  return out;
}

TEST(StopStrings, TheFirstToEndCountsHoweverTheTextIsCut) {
  struct Case {
    std::string text;
    std::vector<const char*> stops;
    std::string want;
    int which;  // -1: none
  };
  const Case cases[] = {
      {"one two three", {"two"}, "one ", 0},
      {"one two three", {"four"}, "one two three", -1},
      {"xabcy", {"abcd", "bc"}, "xa", 1},        // "abcd" might have begun earlier
      {"xabcd", {"abcd", "d"}, "x", 0},          // both end there: the longest
      {"aaab", {"aab"}, "a", 0},                 // an overlap with itself
      {"a<|im_", {"<|im_end|>"}, "a<|im_", -1},  // what was held comes out at the end
      {"\n\n\nUser:", {"\nUser:"}, "\n\n", 0},
      {"", {"a"}, "", -1},
      {"abc", {}, "abc", -1},
  };
  for (const Case& c : cases) {
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{3}, size_t{100}}) {
      sharpi_stop_stream stream;
      EXPECT_EQ(streamed(c.text, c.stops, piece, &stream), c.want) << c.text << " by " << piece;
      EXPECT_EQ(stream.stopped, c.which < 0 ? 0u : 1u) << c.text;
      if (c.which >= 0) {
        EXPECT_EQ(stream.which, static_cast<uint32_t>(c.which)) << c.text;
      }
      EXPECT_EQ(stream.n_held, 0u);
    }
  }
}

TEST(StopStrings, RandomTextsInRandomPiecesAgreeWithASearch) {
  uint64_t x = 88172645463325252ull;
  const auto next = [&x](uint32_t n) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return static_cast<uint32_t>(x % n);
  };
  for (int round = 0; round < 3000; ++round) {
    std::string text(next(40), 'a');
    for (char& c : text) c = static_cast<char>('a' + next(2));
    std::vector<std::string> stops(1 + next(3));
    for (std::string& s : stops) {
      s.assign(1 + next(5), 'a');
      for (char& c : s) c = static_cast<char>('a' + next(2));
    }
    size_t best_end = std::string::npos, best_start = 0;
    for (const std::string& s : stops) {
      const size_t at = text.find(s);
      if (at == std::string::npos) continue;
      const size_t end = at + s.size();
      if (end < best_end || (end == best_end && at < best_start)) best_end = end, best_start = at;
    }
    std::vector<const char*> list;
    for (const std::string& s : stops) list.push_back(s.c_str());
    sharpi_stop_stream stream;
    const std::string want = best_end == std::string::npos ? text : text.substr(0, best_start);
    EXPECT_EQ(streamed(text, list, 1 + next(6), &stream), want) << text;
  }
}

TEST(StopStrings, BadCallsChangeNothing) {
  sharpi_stop_stream stream{};
  sharpi_error e = SHARPI_ERROR_INIT;
  char out[8];
  size_t n = 0;
  const char* stops[] = {"end"};
  ASSERT_EQ(sharpi_stop_stream_push(&stream, stops, 1, "xxen", 4, out, sizeof out, &n, &e), 0);
  EXPECT_EQ(std::string(out, n), "xx");
  EXPECT_EQ(stream.n_held, 2u);
  EXPECT_EQ(sharpi_stop_stream_push(&stream, stops, 1, "0123456789", 10, out, 8, &n, &e),
            SHARPI_E_BUFFER_TOO_SMALL);
  EXPECT_EQ(n, 12u);
  EXPECT_EQ(stream.n_held, 2u);
  const char* empty[] = {""};
  EXPECT_EQ(sharpi_stop_stream_push(&stream, empty, 1, "x", 1, out, 8, &n, &e),
            SHARPI_E_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(e.text, "stops[0] has no bytes"), nullptr) << e.text;
  const std::string longest(SHARPI_STOP_BYTES, 'z'), over(SHARPI_STOP_BYTES + 1, 'z');
  const char* sizes[] = {longest.c_str()};
  EXPECT_EQ(sharpi_stop_stream_push(&stream, sizes, 1, "x", 1, out, 8, &n, &e), SHARPI_OK);
  const char* too_long[] = {over.c_str()};
  EXPECT_EQ(sharpi_stop_stream_push(&stream, too_long, 1, "x", 1, out, 8, &n, &e),
            SHARPI_E_INVALID_ARGUMENT);
  const char* null[] = {nullptr};
  EXPECT_EQ(sharpi_stop_stream_push(&stream, null, 1, "x", 1, out, 8, &n, &e),
            SHARPI_E_INVALID_ARGUMENT);
  sharpi_stop_stream wild{};
  wild.n_held = SHARPI_STOP_BYTES;
  EXPECT_EQ(sharpi_stop_stream_push(&wild, stops, 1, "x", 1, out, 8, &n, &e),
            SHARPI_E_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace sharpi
