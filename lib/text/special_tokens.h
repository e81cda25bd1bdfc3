// SPDX-License-Identifier: MIT
// Finds the tokens that are recognised in raw text before any splitting: leftmost first, at one
// place the longest. The time is linear in the text, whatever the tokens are.
// Thread rule: SpecialTokens is immutable after construction; any thread. A Search has one owner.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace sharpi {

/// A set of texts as an automaton that reads backwards (Aho and Corasick's over the reversed
/// texts): behind each byte it knows the longest text that begins there.
class TokenAutomaton {
 public:
  struct Entry {
    std::string_view text;  // not empty
    int32_t id;
  };
  using State = uint32_t;
  static constexpr State kStart = 0;

  TokenAutomaton() = default;
  /// Of equal texts the lowest id counts. pre: fewer than 2^32 bytes in all.
  explicit TokenAutomaton(std::vector<Entry> entries);

  bool empty() const { return n_bytes_.empty(); }
  /// Bytes of the longest text.
  size_t longest() const { return longest_; }
  /// The state after one more byte to the left.
  State step(State state, unsigned char byte) const;
  /// Of the longest text that begins at the byte that was read last: its bytes (0: none), its id.
  uint32_t n_bytes(State state) const { return states_[state].match == kNone ? 0 : match(state); }
  int32_t id(State state) const { return ids_[states_[state].match]; }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Node {
    uint32_t first_child;  // its children end where the next state's begin
    State fail = kStart;
    uint32_t match = kNone;
  };
  uint32_t match(State state) const { return n_bytes_[states_[state].match]; }
  State child(State state, unsigned char byte) const;
  void build(const std::vector<Entry>& sorted);
  void link();

  std::vector<Node> states_;          // by depth; children of one state side by side
  std::vector<unsigned char> bytes_;  // [state] -> the byte that leads to it
  std::array<State, 256> roots_{};    // children of the start; kStart: none
  std::vector<uint32_t> n_bytes_;     // [text]
  std::vector<int32_t> ids_;          // [text]
  size_t longest_ = 0;
};

class SpecialTokens {
 public:
  /// More is no marker; it bounds how far a search looks ahead.
  static constexpr size_t kMaxBytes = 512;
  struct Entry {
    std::string_view text;  // 1 to kMaxBytes bytes
    int32_t id;
    bool anywhere = true;  // also where text is foreign
  };
  /// Bytes [begin, end) of a text in which only tokens for anywhere are found.
  struct Span {
    size_t begin, end;
  };
  struct Match {
    size_t at = 0;
    size_t bytes = 0;
    int32_t id = -1;  // -1: no match up to the end of the text
  };

  SpecialTokens() = default;
  explicit SpecialTokens(const std::vector<Entry>& entries);

  /// Goes through one text from its beginning to its end.
  class Search {
   public:
    /// Tokens that are not for anywhere must not touch a span of `foreign` (ascending). All three
    /// outlive the search.
    Search(const SpecialTokens& tokens, std::string_view text, std::span<const Span> foreign = {})
        : tokens_(tokens), text_(text), foreign_(foreign) {}
    /// The first match at or after `from`, which never goes back; with none, {text.size(), 0, -1}.
    Match next(size_t from);

   private:
    void read_block();
    void read(const TokenAutomaton& automaton, size_t from, size_t begin, size_t end);
    const SpecialTokens& tokens_;
    std::string_view text_;
    std::span<const Span> foreign_;
    size_t block_begin_ = 0, block_end_ = 0;
    std::vector<Match> found_;  // of the block, the last one first
  };

 private:
  TokenAutomaton all_, anywhere_;
};

}  // namespace sharpi
