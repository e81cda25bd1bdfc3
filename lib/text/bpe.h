// SPDX-License-Identifier: MIT
// Byte-pair merging over token ids: the table of merges, and the procedure that joins the adjacent
// pair of lowest rank, leftmost first, until none is left. O(n log n) in the symbols.
// Thread rule: MergeTable is immutable once filled; BpeMerger has one owner.
#pragma once

#include <cstdint>
#include <vector>

#include "text/hash.h"

namespace sharpi {

class MergeTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Rule {
    uint32_t left, right, merged;  // token ids
  };

  /// Room for `n` rules with ranks below `n`. `seed` guards against files built to collide.
  void reset(uint32_t n, uint64_t seed);
  /// The first rule of a pair stands.
  void add(uint32_t rank, Rule rule);
  uint32_t find(uint32_t left, uint32_t right) const;  // rank or kNone
  /// Asks for the memory that add() or find() of this pair will touch.
  void prefetch(uint32_t left, uint32_t right) const {
    __builtin_prefetch(&slots_[hash(left, right) & mask_]);
  }
  const Rule& rule(uint32_t rank) const { return rules_[rank]; }

 private:
  struct Slot {
    uint32_t rank_plus_1;  // 0: empty
    uint32_t tag;          // hash bits, so that most misses need no look at the rule
  };
  uint64_t hash(uint32_t left, uint32_t right) const {
    return hash_mix((static_cast<uint64_t>(left) << 32 | right) ^ seed_, 0x9E3779B97F4A7C15u);
  }
  uint64_t seed_ = 0;
  uint64_t mask_ = 0;
  std::vector<Slot> slots_;
  std::vector<Rule> rules_;  // [rank]
};

class BpeMerger {
 public:
  void clear() { symbols_.clear(); }
  void push(uint32_t id) { symbols_.push_back({id, kEnd, kEnd}); }
  /// Merges what was pushed and appends the ids that remain to *out.
  void merge(const MergeTable& merges, std::vector<int32_t>* out);

 private:
  static constexpr uint32_t kEnd = UINT32_MAX;
  static constexpr uint32_t kGone = UINT32_MAX;  // id of a symbol that was merged into its left
  struct Symbol {
    uint32_t id, previous, next;
  };
  void queue(const MergeTable& merges, uint32_t left, uint32_t right);
  std::vector<Symbol> symbols_;
  std::vector<uint64_t> heap_;  // rank << 32 | index of the left symbol, smallest on top
};

}  // namespace sharpi
