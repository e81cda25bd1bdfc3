// SPDX-License-Identifier: MIT
#include "kv/unit_moves.h"

namespace sharpi {

/// The next unit that has to move, and the chain that it begins: every unit of it but the first
/// gets the number of the one in front in place of its target.
bool UnitMoves::find_chain() {
  while (scan_ < to_.size() && (to_[scan_] == kNoUnit || to_[scan_] == scan_)) ++scan_;
  if (scan_ >= to_.size()) return false;
  start_ = scan_;
  uint32_t front = start_, at = to_[start_];
  length_ = 1;
  while (at != start_ && to_[at] != kNoUnit) {
    const uint32_t next = to_[at];
    to_[at] = front;
    front = at;
    at = next;
    ++length_;
  }
  cycle_ = at == start_;
  last_ = front;
  at_ = at;
  if (!cycle_) to_[at] = front;
  return true;
}

UnitMoves::Stage UnitMoves::begin_chain() const {
  if (!cycle_) return Stage::kBack;
  return length_ <= kBatch ? Stage::kFirst : Stage::kRoom;
}

size_t UnitMoves::next(std::span<UnitMove> out) {
  const auto room = static_cast<uint32_t>(to_.size());
  size_t n = 0;
  while (n < out.size()) {
    switch (stage_) {
      case Stage::kScan:
        if (!find_chain()) return n;
        stage_ = begin_chain();
        break;
      case Stage::kRoom:
        out[n++] = {start_, room};
        stage_ = Stage::kFirst;
        break;
      case Stage::kFirst:
        // A cycle that needs no room is of one batch.
        if (length_ <= kBatch && n % kBatch + length_ > kBatch) {
          out[n++] = {kNoUnit, 0};
          break;
        }
        out[n++] = {last_, start_};
        at_ = last_;
        stage_ = Stage::kBack;
        break;
      case Stage::kBack: {
        const uint32_t from = to_[at_];
        const bool ends = from == start_;
        out[n++] = {ends && cycle_ && length_ > kBatch ? room : from, at_};
        to_[at_] = at_;
        at_ = from;
        if (!ends) break;
        to_[start_] = cycle_ ? start_ : kNoUnit;
        stage_ = Stage::kScan;
        break;
      }
    }
  }
  return n;
}

}  // namespace sharpi
