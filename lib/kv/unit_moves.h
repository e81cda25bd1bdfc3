// SPDX-License-Identifier: MIT
// Units of memory that change places, as lists of moves for a device that does many at a time: all
// moves of a batch read before any of them writes, and batches follow each other. A path of units
// is moved from its end; a cycle that fits into a batch needs no room, a longer one needs that of a
// unit beside the others.
// Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sharpi {

/// Unit `to` takes what unit `from` has; from = kNoUnit: nothing moves.
struct UnitMove {
  uint32_t from = 0, to = 0;
};

/// A unit that nobody needs, and that goes nowhere.
inline constexpr uint32_t kNoUnit = UINT32_MAX;

class UnitMoves {
 public:
  /// Moves of a batch.
  static constexpr uint32_t kBatch = 256;

  /// targets[i]: where unit i goes, or kNoUnit; no two go to one place. They are used up. The room
  /// for one more is unit number targets.size().
  explicit UnitMoves(std::span<uint32_t> targets) : to_(targets) {}
  /// The next moves, at most out.size(), a multiple of kBatch; fewer only at the end, where there
  /// are none left.
  size_t next(std::span<UnitMove> out);

 private:
  enum class Stage : uint8_t { kScan, kRoom, kFirst, kBack };
  bool find_chain();
  Stage begin_chain() const;

  std::span<uint32_t> to_;
  Stage stage_ = Stage::kScan;
  uint32_t scan_ = 0;               // units in front of it are where they belong
  uint32_t start_ = 0, at_ = 0;     // of the chain; of it, what is filled next
  uint32_t last_ = 0, length_ = 0;  // of a cycle: what goes to its start, and its units
  bool cycle_ = false;
};

}  // namespace sharpi
