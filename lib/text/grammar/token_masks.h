// SPDX-License-Identifier: MIT
// What is remembered of the tokens that a terminal allows, whatever stands around it: those that
// end inside it, and where tokens leave it, which what follows decides about. Thread rule: plain
// values; SharedMasks: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace sharpi::grammar {

/// Of one state of a terminal. Few tokens are a list, many are bits.
struct TerminalMask {
  std::vector<uint32_t> bits;
  std::vector<int32_t> tokens;
  std::vector<uint32_t> exits;  // nodes behind which the terminal may end, and tokens go on
  uint64_t memory() const {
    return bits.size() * 4 + tokens.size() * 4 + exits.size() * 4 + sizeof *this;
  }
  void add_to(uint32_t* out) const;
};

/// Of a repetition of units and what follows it, for all numbers of units at once. Counts are units
/// that a token begins.
struct CountedTokens {
  struct Entry {
    uint32_t count;
    uint32_t what;  // a token, or a node
  };
  std::vector<uint32_t> bits;     // tokens that end among the units, whatever their number
  std::vector<int32_t> tokens;    // the same, fewer units first
  std::vector<uint32_t> n_up_to;  // tokens of at most so many units
  std::vector<Entry> closing;     // tokens that end in what follows the units
  std::vector<Entry> exits;       // as TerminalMask has them
  uint64_t memory() const {
    return bits.size() * 4 + tokens.size() * 4 + n_up_to.size() * 4 +
           (closing.size() + exits.size()) * sizeof(Entry) + sizeof *this;
  }
  /// Tokens of at most `high` units, and of those that close at least `low`.
  void add_to(uint32_t low, uint32_t high, uint32_t* out) const;
};

inline void allow_token(uint32_t* mask, uint32_t token) {
  mask[token / 32] |= 1u << (token % 32);
}

/// Of terminals that every grammar has: the strings of JSON.
class SharedMasks {
 public:
  /// @param n_common expressions that all grammars begin with.
  explicit SharedMasks(uint32_t n_common) : n_common_(n_common) {}
  bool is_common(uint32_t unit, uint32_t then) const {
    return unit < n_common_ && then < n_common_;
  }
  std::shared_ptr<const CountedTokens> find(uint64_t key);
  void keep(uint64_t key, std::shared_ptr<const CountedTokens> tokens);

 private:
  const uint32_t n_common_;
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<const CountedTokens>> known_;
};

}  // namespace sharpi::grammar
