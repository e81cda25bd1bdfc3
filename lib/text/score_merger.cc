// SPDX-License-Identifier: MIT
#include "text/score_merger.h"

#include <algorithm>

#include "base/utf8.h"

namespace sharpi {

void ScoreMerger::add_characters(std::string_view text) {
  symbols_.clear();
  for (size_t at = 0; at < text.size();) {
    const uint32_t bytes = std::max(utf8_character(text, at), 1u);
    const auto i = static_cast<uint32_t>(symbols_.size());
    symbols_.push_back({static_cast<uint32_t>(at), bytes, i == 0 ? kEnd : i - 1, i + 1});
    at += bytes;
  }
  if (!symbols_.empty()) symbols_.back().next = kEnd;
}

void ScoreMerger::queue(const Vocabulary& vocabulary, std::string_view text, uint32_t left) {
  const Symbol& a = symbols_[left];
  const uint32_t bytes = a.bytes + symbols_[a.next].bytes;
  if (bytes > vocabulary.longest_text()) return;
  const uint32_t id = vocabulary.find_mergeable(text.substr(a.at, bytes));
  if (id != Vocabulary::kNone) heap_.push_back({vocabulary.score(id), left, bytes});
}

const std::vector<ScoreMerger::Piece>& ScoreMerger::split(const Vocabulary& vocabulary,
                                                          std::string_view text) {
  const auto worse = [](const Pair& a, const Pair& b) {
    return a.score != b.score ? a.score < b.score : a.left > b.left;
  };
  add_characters(text);
  heap_.clear();
  for (uint32_t i = 0; i + 1 < symbols_.size(); ++i) queue(vocabulary, text, i);
  std::make_heap(heap_.begin(), heap_.end(), worse);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), worse);
    const Pair best = heap_.back();
    heap_.pop_back();
    Symbol& left = symbols_[best.left];
    if (left.bytes == 0 || left.next == kEnd) continue;
    Symbol& right = symbols_[left.next];
    if (left.bytes + right.bytes != best.bytes) continue;
    left.bytes = best.bytes;
    left.next = right.next;
    right.bytes = 0;
    if (left.next != kEnd) symbols_[left.next].previous = best.left;
    for (const uint32_t i : {left.previous, best.left}) {
      if (i == kEnd || symbols_[i].next == kEnd) continue;
      const size_t before = heap_.size();
      queue(vocabulary, text, i);
      if (heap_.size() != before) std::push_heap(heap_.begin(), heap_.end(), worse);
    }
  }
  pieces_.clear();
  for (const Symbol& s : symbols_) {
    if (s.bytes == 0) continue;
    const std::string_view piece = text.substr(s.at, s.bytes);
    pieces_.push_back({piece, vocabulary.find_mergeable(piece)});
  }
  return pieces_;
}

}  // namespace sharpi
