// SPDX-License-Identifier: MIT
#include "tier/expert_cache.h"

#include <algorithm>

namespace sharpi {
namespace {

/// Calls after which counts halve: long against a burst, short against a change of subject.
constexpr uint32_t kCallsToAge = 96;

}  // namespace

ExpertCache::ExpertCache(const ExpertCacheShape& shape) : shape_(shape) {
  const size_t n = size_t{shape.n_layers} * shape.n_experts;
  slots_.resize(shape.n_slots);
  slot_of_.assign(n, -1);
  counts_.assign(n, 0);
  totals_.assign(n, 0);
  in_missed_.assign(n, 0);
  coming_.assign(n, 0);
  missed_.reserve(n);
  free_.reserve(shape.n_slots);
  for (uint32_t s = shape.n_slots; s-- > 0;) free_.push_back(s);
  const uint32_t probation = std::max(1u, shape.n_slots / 4);
  protected_limit_ = shape.policy == ExpertPolicy::kSegmented
                         ? shape.n_slots - std::min(shape.n_slots, probation)
                         : 0;
  calls_to_age_ = kCallsToAge;
}

ExpertCache::List* ExpertCache::list_of(Segment s) {
  return s == Segment::kProtected ? &protected_ : &probation_;
}

void ExpertCache::unlink(uint32_t slot) {
  Slot& s = slots_[slot];
  if (s.segment == Segment::kProbation || s.segment == Segment::kProtected) {
    List* list = list_of(s.segment);
    (s.before == kNil ? list->head : slots_[s.before].after) = s.after;
    (s.after == kNil ? list->tail : slots_[s.after].before) = s.before;
    --list->n;
  }
  s.before = s.after = kNil;
  s.segment = Segment::kNone;
}

void ExpertCache::push(uint32_t slot, Segment segment) {
  List* list = list_of(segment);
  Slot& s = slots_[slot];
  s.segment = segment;
  s.before = kNil;
  s.after = list->head;
  (list->head == kNil ? list->tail : slots_[list->head].before) = slot;
  list->head = slot;
  ++list->n;
}

int32_t ExpertCache::find(ExpertId id) const {
  return slot_of_[index_of(id)];
}

bool ExpertCache::use(ExpertId id) {
  const uint32_t index = index_of(id);
  if (!in_call_) missed_.clear();
  in_call_ = true;
  ++n_uses_;
  ++totals_[index];
  if (counts_[index] != 0xFFFFFFFFu) ++counts_[index];
  const int32_t slot = slot_of_[index];
  if (slot < 0) {
    if (in_missed_[index] == 0 && coming_[index] == 0) {
      in_missed_[index] = 1;
      missed_.push_back(index);
    }
    return false;
  }
  ++n_hits_;
  const auto at = static_cast<uint32_t>(slot);
  if (slots_[at].segment == Segment::kPinned) return true;
  unlink(at);
  push(at, protected_limit_ == 0 ? Segment::kProbation : Segment::kProtected);
  if (protected_.n > protected_limit_) {
    const uint32_t tail = protected_.tail;
    unlink(tail);
    push(tail, Segment::kProbation);
  }
  return true;
}

void ExpertCache::end_call() {
  ++call_;
  if (shape_.policy == ExpertPolicy::kSegmented && --calls_to_age_ == 0) {
    calls_to_age_ = kCallsToAge;
    for (uint32_t& c : counts_) c /= 2;
  }
  for (const uint32_t index : missed_) in_missed_[index] = 0;
  in_call_ = false;
}

uint32_t ExpertCache::least_used(const List& list) const {
  uint32_t best = kNil;
  for (uint32_t s = list.tail; s != kNil; s = slots_[s].before) {  // the least recent first
    if (slots_[s].arrived == call_ && call_ != 0) continue;
    if (best == kNil || counts_[slots_[s].expert] < counts_[slots_[best].expert]) best = s;
  }
  return best;
}

uint32_t ExpertCache::victim() const {
  if (shape_.policy == ExpertPolicy::kLru) return probation_.tail;
  const uint32_t s = least_used(probation_);
  return s != kNil || shape_.policy == ExpertPolicy::kLfu ? s : least_used(protected_);
}

bool ExpertCache::better(uint32_t candidate, uint32_t slot) const {
  return shape_.policy != ExpertPolicy::kSegmented ||
         counts_[candidate] > counts_[slots_[slot].expert];
}

void ExpertCache::start(uint32_t index, uint32_t slot, ExpertFill* out) {
  *out = {id_of(index), slot, false, {}};
  Slot& s = slots_[slot];
  if (s.expert != kNil) {
    out->replaces = true;
    out->victim = id_of(s.expert);
    slot_of_[s.expert] = -1;
    unlink(slot);
    --n_resident_;
    ++n_evictions_;
  }
  s.expert = index;
  coming_[index] = 1;
  ++n_coming_;
}

bool ExpertCache::next_fill(ExpertFill* out) {
  if (slots_.empty()) return false;
  size_t best = missed_.size();
  for (size_t i = missed_.size(); i-- > 0;) {  // of equals the latest
    if (slot_of_[missed_[i]] >= 0 || coming_[missed_[i]] != 0) continue;
    const bool first = best == missed_.size();
    const bool more = !first && shape_.policy == ExpertPolicy::kSegmented &&
                      counts_[missed_[i]] > counts_[missed_[best]];
    if (first || more) best = i;
  }
  if (best == missed_.size()) return false;
  const uint32_t index = missed_[best];
  uint32_t slot = kNil;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else {
    slot = victim();
    if (slot == kNil || !better(index, slot)) {
      missed_.clear();
      return false;
    }
  }
  missed_.erase(missed_.begin() + static_cast<std::ptrdiff_t>(best));
  start(index, slot, out);
  return true;
}

void ExpertCache::filled(const ExpertFill& fill) {
  const uint32_t index = index_of(fill.id);
  coming_[index] = 0;
  --n_coming_;
  slot_of_[index] = static_cast<int32_t>(fill.slot);
  slots_[fill.slot].arrived = call_;
  push(fill.slot, Segment::kProbation);
  ++n_resident_;
}

void ExpertCache::abandoned(const ExpertFill& fill) {
  coming_[index_of(fill.id)] = 0;
  --n_coming_;
  slots_[fill.slot] = Slot{};
  free_.push_back(fill.slot);
}

bool ExpertCache::force_fill(ExpertId id, ExpertFill* out) {
  const uint32_t index = index_of(id);
  if (slot_of_[index] >= 0 || coming_[index] != 0) return false;
  uint32_t slot = kNil;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else {
    slot = victim();
    if (slot == kNil) slot = probation_.tail != kNil ? probation_.tail : protected_.tail;
  }
  if (slot == kNil) return false;
  start(index, slot, out);
  return true;
}

void ExpertCache::pin(ExpertId id) {
  const int32_t slot = slot_of_[index_of(id)];
  if (slot < 0 || slots_[static_cast<uint32_t>(slot)].segment == Segment::kPinned) return;
  unlink(static_cast<uint32_t>(slot));
  slots_[static_cast<uint32_t>(slot)].segment = Segment::kPinned;
  ++n_pinned_;
}

}  // namespace sharpi
