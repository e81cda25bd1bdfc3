// SPDX-License-Identifier: MIT
#include "text/special_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace sharpi::special {
namespace {

using Span = SpecialTokens::Span;
using Match = SpecialTokens::Match;

bool allowed(const SpecialTokens::Entry& e, size_t at, const std::vector<Span>& foreign) {
  return e.anywhere || std::none_of(foreign.begin(), foreign.end(), [&](const Span& s) {
           return s.begin < at + e.text.size() && at < s.end;
         });
}

/// Leftmost, longest, of equal texts the lowest id: by looking at everything.
Match plain_next(const std::vector<SpecialTokens::Entry>& entries, std::string_view text,
                 const std::vector<Span>& foreign, size_t from) {
  for (size_t at = from; at < text.size(); ++at) {
    Match best{at, 0, -1};
    for (const SpecialTokens::Entry& e : entries) {
      if (!text.substr(at).starts_with(e.text) || !allowed(e, at, foreign)) continue;
      const bool longer = e.text.size() > best.bytes;
      const bool lower = e.text.size() == best.bytes && e.id < best.id;
      if (longer || lower) best = {at, e.text.size(), e.id};
    }
    if (best.id >= 0) return best;
  }
  return {text.size(), 0, -1};
}

std::vector<Match> all_matches(const std::vector<SpecialTokens::Entry>& entries,
                               std::string_view text, const std::vector<Span>& foreign = {}) {
  const SpecialTokens tokens(entries);
  SpecialTokens::Search search(tokens, text, foreign);
  std::vector<Match> out;
  for (size_t at = 0; at < text.size(); at = out.back().at + out.back().bytes) {
    out.push_back(search.next(at));
  }
  return out;
}

TEST(SpecialTokens, FindsWhatLookingAtEverythingFinds) {
  std::mt19937 rng(4);
  const auto draw = [&](size_t below) {
    return std::uniform_int_distribution<size_t>(0, below - 1)(rng);
  };
  const auto word = [&](size_t most) {
    std::string out;
    for (size_t n = 1 + draw(most); out.size() < n;)
      out.push_back(static_cast<char>('a' + draw(3)));
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    std::deque<std::string> texts;
    std::vector<SpecialTokens::Entry> entries;
    for (size_t n = 1 + draw(8); entries.size() < n;) {
      texts.push_back(word(6));
      entries.push_back({texts.back(), static_cast<int32_t>(draw(20)), draw(3) == 0});
    }
    const std::string text = word(60);
    std::vector<Span> foreign;
    for (size_t at = draw(20); at < text.size(); at += 1 + draw(20)) {
      const size_t end = std::min(at + 1 + draw(9), text.size());
      foreign.push_back({at, end});
      at = end;
    }
    if (draw(4) == 0) foreign.clear();
    size_t from = 0;
    for (const Match& found : all_matches(entries, text, foreign)) {
      const Match expected = plain_next(entries, text, foreign, from);
      ASSERT_EQ(found.at, expected.at) << text;
      ASSERT_EQ(found.bytes, expected.bytes) << text;
      ASSERT_EQ(found.id, expected.id) << text;
      from = found.at + found.bytes;
    }
  }
}

TEST(SpecialTokens, LieAcrossTheBlocksOfASearch) {
  const std::string mark(500, 'm');
  const std::vector<SpecialTokens::Entry> entries = {{mark, 7, false}, {"ab", 3, true}};
  for (const size_t before : {4090u, 4096u, 3700u, 8191u, 8192u}) {
    const std::string text = std::string(before, 'x') + mark + "ab" + std::string(9000, 'y');
    const auto found = all_matches(entries, text);
    ASSERT_EQ(found.size(), 3u);
    EXPECT_EQ(found[0].at, before);
    EXPECT_EQ(found[0].id, 7);
    EXPECT_EQ(found[1].at, before + 500);
    EXPECT_EQ(found[1].id, 3);
    EXPECT_EQ(found[2].id, -1);
    const std::vector<Span> foreign = {{before + 499, before + 501}};
    const auto across = all_matches(entries, text, foreign);
    ASSERT_EQ(across.size(), 2u) << "a foreign byte in it";
    EXPECT_EQ(across[0].id, 3);
  }
}

TEST(SpecialTokens, NoSetOfThemMakesASearchSlow) {
  // Each of these would take minutes if every place were compared with every text, or to its depth.
  const std::string as(6000000, 'a');
  const std::vector<SpecialTokens::Entry> equal(300000, {"a", 5, true});
  EXPECT_EQ(all_matches(equal, as).size(), as.size());
  std::deque<std::string> texts;
  std::vector<SpecialTokens::Entry> chain = {{"a", 0, true}};
  for (size_t n = 1; n < SpecialTokens::kMaxBytes; ++n) {
    texts.push_back(std::string(n, 'a') + "b");
    chain.push_back({texts.back(), static_cast<int32_t>(n), n % 2 == 0});
  }
  EXPECT_EQ(all_matches(chain, as).size(), as.size());
  std::vector<Span> foreign;
  for (size_t at = 0; at < as.size(); at += 2) foreign.push_back({at, at + 1});
  EXPECT_EQ(all_matches(chain, as, foreign).size(), as.size());
}

}  // namespace
}  // namespace sharpi::special
