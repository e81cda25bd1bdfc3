// SPDX-License-Identifier: MIT
// Which routed experts have a slot of device memory while the others stay in host memory (expert
// offloading): the replacement policy alone, no bytes. A segmented LRU with frequencies. Every use
// is counted, resident or not; counts halve from time to time. A hit moves an expert to the head of
// the protected segment (75% of the slots), whose last expert falls back to the head of the
// probation segment (25%). An expert that is not resident gets a free slot if there is one.
// Otherwise it replaces the least used expert on probation, among equals the one used longest ago,
// if it was used more often than that; an expert that came in this call is never replaced. Pinned
// experts stay.
// Thread rule: one owner.
#pragma once

#include <cstdint>
#include <vector>

namespace sharpi {

struct ExpertId {
  uint32_t layer = 0, expert = 0;
  bool operator==(const ExpertId&) const = default;
};

/// An expert on its way into a slot, and the expert that it replaces there.
struct ExpertFill {
  ExpertId id;
  uint32_t slot = 0;
  bool replaces = false;
  ExpertId victim;
};

/// kSegmented is what the library uses; the others are there to be compared with it.
enum class ExpertPolicy : uint8_t { kSegmented, kLru, kLfu };

struct ExpertCacheShape {
  uint32_t n_layers = 0, n_experts = 0, n_slots = 0;
  ExpertPolicy policy = ExpertPolicy::kSegmented;
};

class ExpertCache {
 public:
  explicit ExpertCache(const ExpertCacheShape& shape);
  /// Slot of a resident expert, -1 = it has none (or is still on its way).
  int32_t find(ExpertId id) const;
  /// A row uses an expert. True = resident.
  bool use(ExpertId id);
  /// One call's uses are over: counts age, and what was missed may be asked for.
  void end_call();
  /// The expert that should come in next; its victim is no longer resident. False = none.
  bool next_fill(ExpertFill* out);
  /// The fill has arrived: the expert is resident, at the head of probation.
  void filled(const ExpertFill& fill);
  /// It will not arrive: the slot is free.
  void abandoned(const ExpertFill& fill);
  /// A fill for an expert that shall be resident whatever its uses: into a free slot, or in place
  /// of the policy's victim, pinned ones excepted. False = it is there already, or no slot is left.
  bool force_fill(ExpertId id, ExpertFill* out);
  /// A resident expert is never evicted from now on.
  void pin(ExpertId id);

  uint32_t n_slots() const { return static_cast<uint32_t>(slots_.size()); }
  uint32_t n_resident() const { return n_resident_; }
  uint32_t n_coming() const { return n_coming_; }
  uint32_t n_pinned() const { return n_pinned_; }
  uint64_t n_uses() const { return n_uses_; }
  uint64_t n_hits() const { return n_hits_; }
  uint64_t n_evictions() const { return n_evictions_; }
  /// All uses of an expert so far, not aged.
  uint64_t uses(ExpertId id) const { return totals_[index_of(id)]; }

 private:
  enum class Segment : uint8_t { kNone, kProbation, kProtected, kPinned };
  static constexpr uint32_t kNil = 0xFFFFFFFFu;
  struct Slot {
    uint32_t expert = kNil;  // index; kNil = free
    uint32_t before = kNil, after = kNil;
    Segment segment = Segment::kNone;  // kNone with an expert: on its way
    uint32_t arrived = 0;              // call in which it came
  };
  struct List {
    uint32_t head = kNil, tail = kNil, n = 0;
  };
  uint32_t index_of(ExpertId id) const { return id.layer * shape_.n_experts + id.expert; }
  ExpertId id_of(uint32_t index) const {
    return {index / shape_.n_experts, index % shape_.n_experts};
  }
  List* list_of(Segment s);
  void unlink(uint32_t slot);
  void push(uint32_t slot, Segment segment);
  uint32_t victim() const;
  uint32_t least_used(const List& list) const;
  bool better(uint32_t candidate, uint32_t slot) const;
  void start(uint32_t index, uint32_t slot, ExpertFill* out);

  ExpertCacheShape shape_;
  std::vector<Slot> slots_;
  std::vector<int32_t> slot_of_;  // by expert; only resident ones
  std::vector<uint32_t> counts_;  // aged
  std::vector<uint64_t> totals_;
  std::vector<uint32_t> missed_;  // of the last calls, each once
  std::vector<uint8_t> in_missed_, coming_;
  std::vector<uint32_t> free_;
  List probation_, protected_;
  uint32_t protected_limit_ = 0, n_resident_ = 0, n_coming_ = 0, n_pinned_ = 0;
  uint32_t call_ = 0, calls_to_age_ = 0;
  bool in_call_ = false;
  uint64_t n_uses_ = 0, n_hits_ = 0, n_evictions_ = 0;
};

}  // namespace sharpi
