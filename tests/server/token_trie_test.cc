// SPDX-License-Identifier: MIT
// Masks over a vocabulary agree with trying every token by itself.
#include "token_trie.h"

#include <gtest/gtest.h>

#include <random>

#include "json_schema.h"

namespace server {
namespace {

bool allowed(const std::vector<uint32_t>& mask, size_t token) {
  return (mask[token / 32] >> (token % 32) & 1) != 0;
}

std::vector<TokenTrie::Token> vocabulary() {
  std::vector<TokenTrie::Token> out;
  for (int byte = 0; byte < 256; ++byte) {
    out.push_back({byte, std::string(1, static_cast<char>(byte))});
  }
  const char* const longer[] = {"{\"",      "\":",   "\": ",  "\", \"", "}}",  "]}",
                                "true",     "tru",   "false", "null",   "12",  "\"a\"",
                                "{}",       "[]",    "  ",    "\n  ",   "abc", "ab",
                                "\xC3\xA9", "a\xC3", "\\u00", "1e5",    "-1",  "ab"};
  for (const char* text : longer) out.push_back({static_cast<int32_t>(out.size()), text});
  out.push_back({static_cast<int32_t>(out.size()), std::string("\xFF") + "<mark>"});
  return out;
}

TEST(TokenTrie, MaskIsWhatEachTokenWouldGiveByItself) {
  const std::vector<TokenTrie::Token> tokens = vocabulary();
  const auto n = static_cast<uint32_t>(tokens.size()) + 2;  // one that ends, one that is not listed
  const TokenTrie trie(tokens, n, {static_cast<int32_t>(n) - 2});
  Grammar g;
  JsonGrammar parts(g);
  const Expr root =
      g.sequence({g.either({g.bytes("<mark>"), g.bytes("\xFF<mark>")}), parts.value()});
  Matcher matcher(g, root);
  std::mt19937 random(3);
  Matcher::State state = matcher.start();
  size_t tried = 0;
  for (int i = 0; i < 400; ++i) {
    const std::vector<uint32_t> mask = trie.mask(matcher, state);
    std::vector<size_t> next;
    for (const TokenTrie::Token& token : tokens) {
      const auto id = static_cast<size_t>(token.id);
      const bool fits = matcher.walk(state, token.path) != Matcher::kDead;
      ASSERT_EQ(allowed(mask, id), fits) << i << ": " << token.path;
      if (fits) next.push_back(id);
      tried += fits ? 1 : 0;
    }
    ASSERT_EQ(allowed(mask, n - 2), matcher.accepts(state));
    ASSERT_FALSE(allowed(mask, n - 1));
    if (next.empty()) {
      state = matcher.start();
    } else {
      state = matcher.walk(state, trie.path(static_cast<int32_t>(next[random() % next.size()])));
    }
  }
  EXPECT_GT(tried, 1000u);
}

}  // namespace
}  // namespace server
