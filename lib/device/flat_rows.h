// SPDX-License-Identifier: MIT
// Rows of KV heads in flat memory of the device, on their way between where a session has them and
// its archive, and the work that brings them: lists of copies and of keys that widen bounds, which
// cross as one block. Thread rule: one owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/checked.h"
#include "device/row_copies.h"
#include "kv/kv_layout.h"
#include "kv/row_archive.h"

namespace sharpi::device {

class DeviceSession;

/// Memory that is given away piece by piece, on the device and, as far as it is there, pinned: the
/// same places in both.
class Pieces {
 public:
  static constexpr uint64_t kAlign = 256;
  Pieces(std::byte* device, std::byte* pinned) : device_(device), pinned_(pinned) {}
  struct Piece {
    std::byte *device = nullptr, *pinned = nullptr;
  };
  Piece take(uint64_t bytes) {
    const Piece p{device_ + at_, pinned_ + at_};
    at_ += round_up(bytes, kAlign);
    return p;
  }
  uint64_t taken() const { return at_; }

 private:
  std::byte *device_, *pinned_;
  uint64_t at_ = 0;
};

/// Rows of a head in flat memory: K, V and scores.
struct FlatHead {
  std::byte* sides[2] = {};
  std::byte* scores = nullptr;
  static FlatHead take(Pieces* from, const KvLayerLayout& layout, uint64_t n);
  static constexpr uint64_t bytes_of(uint64_t n, uint64_t row_bytes) {
    return n * (row_bytes + sizeof(float)) + 3 * Pieces::kAlign;
  }
};

/// Keys of rows that go to an archive, and the bounds of the blocks that they go to.
class KeyBounds {
 public:
  static constexpr uint64_t bytes_of(uint64_t n_rows) { return n_rows * sizeof(KeyBoundsJob); }
  KeyBounds(const Pieces::Piece& jobs, const KvLayerLayout& layout);
  /// Row i of those at `keys` takes places[i]; `bounds`: of the head's first block.
  void add(const std::byte* keys, std::span<const uint32_t> places, std::byte* bounds);
  const KeyBoundsParams& params() const { return params_; }

 private:
  std::byte* to_;
  uint32_t row_bytes_;
  KeyBoundsParams params_;
};

/// A KV head's rows of a session, for kernels. Pre: the device has the tables (send_tables()).
StoredHead stored_head(const DeviceSession& session, uint32_t layer, uint32_t head);

/// Rows of a head between where a session has them and flat memory, their scores with them.
void add_rows(RowCopies* to, const DeviceSession& session, uint32_t layer, uint32_t head,
              const FlatHead& flat, const RowCopies::Rows& rows);
/// The same of archived ones.
void add_archived(RowCopies* to, const DeviceSession& session, const RowArchive& archive,
                  uint32_t layer, uint32_t head, const FlatHead& flat, const RowCopies::Rows& rows);

}  // namespace sharpi::device
