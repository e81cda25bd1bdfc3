// SPDX-License-Identifier: MIT
// Sets of byte strings as expressions: bytes, sequences, alternatives, repetitions, rules that may
// contain themselves. Equal expressions are one.
// Thread rule: one thread an object.
#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace server {

using Expr = uint32_t;
using ByteSet = std::bitset<256>;

class Grammar {
 public:
  static constexpr uint32_t kAnyNumber = std::numeric_limits<uint32_t>::max();
  enum class Kind : uint8_t { kEmpty, kSet, kSequence, kEither, kRepeat, kRule };
  struct Node {
    Kind kind;
    bool possible = true;        // some string matches it
    Expr a = 0, b = 0;           // kSet: index of the set; kRule: its body
    uint32_t low = 0, high = 0;  // kRepeat
  };

  Grammar();
  Expr empty() const { return 0; }
  Expr byte(unsigned char value);
  Expr set(const ByteSet& bytes);
  Expr bytes(std::string_view text);
  Expr sequence(std::initializer_list<Expr> parts);
  Expr sequence(const std::vector<Expr>& parts);
  /// One of these; there must be one.
  Expr either(const std::vector<Expr>& choices);
  /// `what` must not match the empty string.
  Expr repeat(Expr what, uint32_t low, uint32_t high);
  Expr optional(Expr what) { return either({empty(), what}); }
  /// A name for an expression that is defined later.
  Expr rule();
  void define(Expr rule, Expr body) { nodes_[rule].a = body; }

  /// Finds out which expressions no string matches, once all rules so far are defined, for good.
  /// False: this one is such.
  bool settle(Expr root);
  /// From here on expressions are made while matching: there is no limit any more.
  void seal() { sealed_ = true; }

  const Node& node(Expr e) const { return nodes_[e]; }
  bool has(Expr set_node, unsigned char byte) const { return sets_[nodes_[set_node].a][byte]; }

  /// Expressions beyond this many are refused with std::length_error until seal() was called.
  static constexpr size_t kMaxNodes = 200000;

 private:
  using Key = std::tuple<Kind, Expr, Expr, uint32_t, uint32_t>;
  Expr intern(const Node& node);
  bool is_possible(const Node& node) const;

  std::vector<Node> nodes_;
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, Expr> known_sets_;  // their indices
  std::map<Key, Expr> known_;
  Expr n_settled_ = 0;
  bool sealed_ = false;
};

}  // namespace server
