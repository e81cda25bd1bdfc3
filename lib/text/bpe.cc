// SPDX-License-Identifier: MIT
#include "text/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>

namespace sharpi {

void MergeTable::reset(uint32_t n, uint64_t seed) {
  seed_ = seed;
  const uint64_t capacity = std::bit_ceil(static_cast<uint64_t>(n) * 2 + 2);
  mask_ = capacity - 1;
  slots_.assign(capacity, Slot{0, 0});
  rules_.assign(n, Rule{kNone, kNone, kNone});
}

void MergeTable::add(uint32_t rank, Rule rule) {
  const uint64_t h = hash(rule.left, rule.right);
  const auto tag = static_cast<uint32_t>(h >> 32);
  uint64_t i = h & mask_;
  for (; slots_[i].rank_plus_1 != 0; i = (i + 1) & mask_) {
    const Rule& other = rules_[slots_[i].rank_plus_1 - 1];
    if (slots_[i].tag == tag && other.left == rule.left && other.right == rule.right) return;
  }
  slots_[i] = {rank + 1, tag};
  rules_[rank] = rule;
}

uint32_t MergeTable::find(uint32_t left, uint32_t right) const {
  const uint64_t h = hash(left, right);
  const auto tag = static_cast<uint32_t>(h >> 32);
  for (uint64_t i = h & mask_; slots_[i].rank_plus_1 != 0; i = (i + 1) & mask_) {
    if (slots_[i].tag != tag) continue;
    const uint32_t rank = slots_[i].rank_plus_1 - 1;
    if (rules_[rank].left == left && rules_[rank].right == right) return rank;
  }
  return kNone;
}

void BpeMerger::queue(const MergeTable& merges, uint32_t left, uint32_t right) {
  const uint32_t rank = merges.find(symbols_[left].id, symbols_[right].id);
  if (rank != MergeTable::kNone) heap_.push_back(static_cast<uint64_t>(rank) << 32 | left);
}

void BpeMerger::merge(const MergeTable& merges, std::vector<int32_t>* out) {
  const auto n = static_cast<uint32_t>(symbols_.size());
  heap_.clear();
  for (uint32_t i = 0; i < n; ++i) {
    symbols_[i].previous = i == 0 ? kEnd : i - 1;
    symbols_[i].next = i + 1 == n ? kEnd : i + 1;
    if (i + 1 < n) queue(merges, i, i + 1);
  }
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());

  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const auto rank = static_cast<uint32_t>(heap_.back() >> 32);
    const auto i = static_cast<uint32_t>(heap_.back());
    heap_.pop_back();
    // A rank belongs to one pair, so the entry is current exactly if that pair still stands here.
    const MergeTable::Rule& rule = merges.rule(rank);
    Symbol& left = symbols_[i];
    if (left.id != rule.left || left.next == kEnd) continue;
    Symbol& right = symbols_[left.next];
    if (right.id != rule.right) continue;

    left.id = rule.merged;
    left.next = right.next;
    right.id = kGone;
    if (left.next != kEnd) symbols_[left.next].previous = i;
    const auto queue_and_sift = [&](uint32_t a, uint32_t b) {
      const size_t before = heap_.size();
      queue(merges, a, b);
      if (heap_.size() != before) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    };
    if (left.previous != kEnd) queue_and_sift(left.previous, i);
    if (left.next != kEnd) queue_and_sift(i, left.next);
  }
  for (const Symbol& s : symbols_) {
    if (s.id != kGone) out->push_back(static_cast<int32_t>(s.id));
  }
}

}  // namespace sharpi
