// SPDX-License-Identifier: MIT
// Sets of byte strings as expressions: bytes, sequences, choices, repetitions, both-and, not, rules
// that may contain themselves. Equal expressions are one. Work and memory are bounded: once a bound
// is reached, is_spent() is true and what comes out means nothing.
// Thread rule: one thread an object.
#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sharpi::grammar {

using Expr = uint32_t;
using ByteSet = std::bitset<256>;

class Expressions {
 public:
  static constexpr uint32_t kAnyNumber = UINT32_MAX;
  static constexpr Expr kNothing = 0;  // no string
  static constexpr Expr kEmpty = 1;    // the empty string

  enum class Kind : uint8_t {
    kNothing,
    kEmpty,
    kSet,        // a: index of the set
    kSequence,   // a, then b
    kEither,     // a: first of b children
    kBoth,       // the same
    kNot,        // every string but those of a
    kRepeat,     // a, low to high times
    kRule,       // a: index of its body
    kTerminal,   // the strings of a, which has no rules: what masks are remembered of
    kMultiples,  // digits, see multiples(); low: the divisor, high: the rest so far
  };
  struct Node {
    Kind kind = Kind::kNothing;
    bool accepts_empty = false;
    bool possible = false;  // some string matches; of kBoth and kNot: perhaps
    bool boolean = false;   // has kBoth or kNot inside, outside of terminals
    Expr a = 0, b = 0;
    uint32_t low = 0, high = 0;
  };

  Expressions();

  Expr byte(unsigned char value);
  Expr set(const ByteSet& bytes);
  Expr bytes(std::string_view text);
  /// One of these texts. They share their beginnings.
  Expr texts(std::vector<std::string_view> texts);
  Expr sequence(Expr first, Expr then);
  Expr sequence(std::initializer_list<Expr> parts);
  Expr sequence(const std::vector<Expr>& parts);
  Expr either(std::vector<Expr> choices) { return either(std::move(choices), 0); }
  Expr both(std::vector<Expr> parts);
  Expr both(Expr a, Expr b) { return both(std::vector<Expr>{a, b}); }
  Expr complement(Expr a);
  Expr repeat(Expr what, uint32_t low, uint32_t high);
  Expr optional(Expr what) { return either({kEmpty, what}); }
  Expr any_number(Expr what) { return repeat(what, 0, kAnyNumber); }
  Expr terminal(Expr regular);
  /// Decimal digits of n, so that (rest * 10^digits + n) is a multiple of `divisor`.
  Expr multiples(uint32_t divisor, uint32_t rest);
  /// A name for an expression that is defined later.
  Expr rule();
  void define(Expr rule, Expr body) { bodies_[nodes_[rule].a] = body; }
  bool is_defined(Expr rule) const { return bodies_[nodes_[rule].a] != kUndefined; }

  /// Finds out which expressions match nothing and which the empty string, once every rule is
  /// defined. False: a rule begins with itself, or through too many others; *culprit is one of it.
  bool settle(Expr* culprit);

  const Node& node(Expr e) const { return nodes_[e]; }
  Expr body(Expr rule) const { return bodies_[nodes_[rule].a]; }
  const Expr* children(Expr e) const { return lists_.data() + nodes_[e].a; }
  const ByteSet& bytes_of(Expr set_node) const { return sets_[nodes_[set_node].a]; }
  size_t size() const { return nodes_.size(); }
  uint64_t memory() const;

  /// A part of `unit`, of which no match begins another one, so that a repetition of it reads a
  /// text in one way only. Masks of repetitions are made for all their lengths at once then.
  void mark_unit(Expr unit) { units_.push_back(unit); }
  bool is_unit(Expr e) const;

  /// The bytes that strings of an expression begin with, or more.
  ByteSet first_bytes(Expr e) const;
  /// What follows `byte`, which the expression has to begin with.
  Expr after(Expr e, unsigned char byte);
  /// Bytes with the same number are followed by the same.
  void classes(Expr e, uint8_t* class_of) const;

  /// Some string matches a regular expression: found by looking for one where it has kBoth or kNot.
  bool is_live(Expr regular);
  /// An expression of another object, whose first `shared` nodes are this one's, too.
  Expr copy(const Expressions& other, Expr e, Expr shared);

  void set_limits(uint64_t work, uint64_t bytes) {
    work_left_ = work;
    max_bytes_ = bytes;
    spent_ = false;
  }
  bool is_spent() const { return spent_; }
  bool spend(uint64_t work);
  uint64_t work_left() const { return work_left_; }

 private:
  static constexpr Expr kUndefined = UINT32_MAX;
  static constexpr int kMaxFactored = 48;  // calls within calls
  Expr either(std::vector<Expr> choices, int depth);
  void gather(Kind kind, const std::vector<Expr>& from, std::vector<Expr>* out) const;
  void merge_heads(std::vector<Expr>* choices, int depth);
  void merge_terminals(std::vector<Expr>* choices, int depth);
  void merge_repeats(std::vector<Expr>* choices);
  Expr head(Expr e) const { return nodes_[e].kind == Kind::kSequence ? nodes_[e].a : e; }
  Expr tail(Expr e) const { return nodes_[e].kind == Kind::kSequence ? nodes_[e].b : kEmpty; }
  Expr list(Kind kind, const std::vector<Expr>& children);
  Expr intern(const Node& node, const Expr* children = nullptr);
  bool same(const Node& a, const Node& b, const Expr* b_children) const;
  uint64_t hash(const Node& node, const Expr* children) const;
  void grow();
  bool evaluate(const Node& node, bool* accepts_empty) const;
  void settle_flags();
  bool flatten_choices(Expr* culprit);
  bool begins_with_itself(Expr* culprit) const;
  void first_parts(Expr e, std::vector<Expr>* out) const;
  void collect_sets(Expr e, std::vector<const ByteSet*>* out, bool* digits) const;
  Expr after_sequence(Expr e, unsigned char byte);
  Expr texts(const std::string_view* first, size_t n, size_t at, int depth);

  std::vector<Node> nodes_;
  std::vector<Expr> lists_;
  std::vector<Expr> bodies_;  // of rules
  std::vector<ByteSet> sets_;
  std::unordered_map<ByteSet, uint32_t> known_sets_;
  std::vector<Expr> units_;
  enum class Live : uint8_t { kUnknown, kYes, kNo };
  std::vector<Live> live_;       // by node, where it was asked
  std::vector<uint32_t> slots_;  // of the table of known nodes: index + 1
  uint64_t work_left_ = UINT64_MAX, max_bytes_ = UINT64_MAX;
  bool spent_ = false, settled_ = false;
};

}  // namespace sharpi::grammar
