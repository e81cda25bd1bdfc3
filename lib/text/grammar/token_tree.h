// SPDX-License-Identifier: MIT
// The bytes of all tokens as a tree, so that one walk finds every token that may come next. Control
// tokens stand in it behind the byte 0xFF, which no text has: a grammar can ask for them, and no
// text can spell them. Tokens that have that byte are never allowed.
// Thread rule: immutable after it was made; any thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace sharpi::grammar {

class TokenTree {
 public:
  static constexpr unsigned char kControl = 0xFF;
  /// Tokens of more bytes are never allowed.
  static constexpr uint32_t kMaxToken = 256;

  struct Node {
    uint32_t after;  // the first node behind its subtree
    uint32_t first_token;
    uint32_t wide;  // of a subtree that characters_below() knows: 1 + its index; else 0
    uint16_t n_tokens;
    uint8_t byte;
    uint8_t depth;  // from 1; 0 stands for 256
  };

  explicit TokenTree(const Tokenizer& tokenizer);

  uint32_t n_words() const { return (n_vocab_ + 31) / 32; }
  uint32_t n_vocab() const { return n_vocab_; }
  /// The bytes that begin the characters of a subtree, all of which are whole and well-formed, but
  /// for the last of a token. pre: node.wide != 0
  const std::bitset<256>& characters_below(const Node& node) const {
    return characters_[node.wide - 1];
  }
  /// The tokens of a subtree stand together in ids(), from first_token to here.
  uint32_t end_of_tokens(const Node& node) const {
    return node.after < nodes_.size() ? nodes_[node.after].first_token
                                      : static_cast<uint32_t>(ids_.size());
  }
  /// Each before its subtree.
  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  /// Tokens that end a generation.
  const std::vector<int32_t>& ends() const { return ends_; }
  bool is_end(int32_t token) const;
  /// Its bytes, of a control token kControl and its spelling; empty for one that is never allowed.
  std::string_view path(int32_t token) const;
  uint32_t longest() const { return longest_; }
  static uint32_t depth(const Node& node) { return node.depth == 0 ? kMaxToken : node.depth; }

 private:
  struct Token {
    std::string path;
    int32_t id;
  };
  void add(const std::vector<Token>& sorted);
  void find_characters();

  uint32_t n_vocab_ = 0, longest_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::bitset<256>> characters_;
  std::vector<int32_t> ids_;
  std::vector<int32_t> ends_;  // ascending
  std::string bytes_;          // of all paths
  std::vector<uint32_t> path_ends_;
};

}  // namespace sharpi::grammar
