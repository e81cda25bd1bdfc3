// SPDX-License-Identifier: MIT
// The bytes of all tokens as a tree, so that one walk finds every token that a grammar allows next.
// Control tokens stand in it behind the byte 0xFF, which no text has: a grammar can ask for them,
// and no text of a user's can spell them.
// Thread rule: const, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "matcher.h"

namespace server {

class TokenTrie {
 public:
  static constexpr unsigned char kControl = 0xFF;
  struct Token {
    int32_t id;
    std::string path;  // its bytes; of a control token kControl and its spelling
  };

  /// @param n_vocab tokens of the vocabulary; those that are not listed are never allowed.
  TokenTrie(std::vector<Token> tokens, uint32_t n_vocab, std::vector<int32_t> ends);

  /// One bit for each token that may come next; the ends where the state accepts.
  std::vector<uint32_t> mask(Matcher& matcher, Matcher::State state) const;
  /// Empty for a token that no grammar allows.
  const std::string& path(int32_t token) const { return paths_[static_cast<size_t>(token)]; }

 private:
  struct Node {
    unsigned char byte;
    uint16_t depth;                   // from 1
    uint32_t after;                   // the first node behind its subtree
    uint32_t first_token, end_token;  // of ids_
  };
  static constexpr size_t kMaxPath = 256;

  uint32_t n_words_;
  std::vector<Node> nodes_;  // each before its subtree
  std::vector<int32_t> ids_;
  std::vector<int32_t> ends_;
  std::vector<std::string> paths_;
};

}  // namespace server
