// SPDX-License-Identifier: MIT
// KvStore: the bytes of one session's KV rows and recurrent state on one tier. It knows no policy
// and no lengths; the ledger says which rows are live. Kernels get KvView values, never the store.
// A compaction has two steps: stage_* does everything that may fail and changes nothing visible,
// apply_* cannot fail. Thread rule: one owner (the session); views are valid until the store is
// destroyed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/kv_layout.h"

namespace sharpi {

class KvLedger;

/// Lists in memory that someone else owns: of equal length, or each of its own.
class KeepLists {
 public:
  KeepLists() = default;
  KeepLists(const uint32_t* first, size_t n_lists, size_t n_rows, size_t stride)
      : first_(first), n_lists_(n_lists), n_rows_(n_rows), stride_(stride) {}
  /// `counts`: the length of each list.
  KeepLists(const uint32_t* first, std::span<const uint32_t> counts, size_t stride)
      : first_(first), counts_(counts.data()), n_lists_(counts.size()), stride_(stride) {}
  size_t size() const { return n_lists_; }
  std::span<const uint32_t> operator[](size_t list) const {
    return {first_ + list * stride_, counts_ != nullptr ? counts_[list] : n_rows_};
  }

 private:
  const uint32_t* first_ = nullptr;
  const uint32_t* counts_ = nullptr;
  size_t n_lists_ = 0, n_rows_ = 0, stride_ = 0;
};

/// Survivors of one layer: dst slot i takes src slot keep[head][i], ascending. One list = all heads
/// agree and rows move whole. The lists live until the move is applied or discarded.
struct KvMove {
  uint32_t layer = 0;
  KeepLists keep;
  bool by_head = false;  // rows are in blocks of one head afterwards; of all moves of a group, or
                         // of none
};

/// The two parts of a recurrent layer: the state of its heads, and the last rows in front of its
/// convolution.
enum class StatePart : uint8_t { kState, kConv };

class KvStore;

/// Bytes of rows that are copied at a time.
inline constexpr uint64_t kRowPiece = 256 * 1024;

/// Memory of a store that copies of its rows are fastest to and from, two pieces of it, for one
/// call at a time; without bytes there is none, or another call has it. What is under way has ended
/// when it goes.
class CopyRoom {
 public:
  CopyRoom() = default;
  /// `taken` is set as long as it lives.
  CopyRoom(const KvStore& store, std::span<std::byte> bytes, std::atomic<bool>* taken)
      : store_(&store), bytes_(bytes), taken_(taken) {}
  CopyRoom(CopyRoom&& o) noexcept
      : store_(std::exchange(o.store_, nullptr)), bytes_(o.bytes_), taken_(o.taken_) {}
  CopyRoom& operator=(CopyRoom&&) = delete;
  inline ~CopyRoom();
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const KvStore* store_ = nullptr;
  std::span<std::byte> bytes_;
  std::atomic<bool>* taken_ = nullptr;
};

class KvStore {
 public:
  virtual ~KvStore() = default;
  virtual const KvLayout& layout() const = 0;
  /// Rows of an owning layer of this tier.
  virtual KvView view(uint32_t layer) const = 0;
  /// The slots that are committed in a group, and the bytes that it holds.
  virtual uint32_t capacity(uint32_t group) const = 0;
  virtual uint64_t held_bytes(uint32_t group) const = 0;
  /// The bytes that a group would hold with n_slots.
  virtual uint64_t held_bytes_of(uint32_t group, uint32_t n_slots) const = 0;

  /// The slot of the first of n_rows rows that a call writes behind those of a full-attention
  /// layer. Nothing else says where new rows go, on any tier: kInternal, and an assertion in debug
  /// builds, unless all of them lie in committed memory.
  Result<uint32_t> append_slot(uint32_t layer, const KvLedger& ledger, uint32_t n_rows) const;

  /// Rows in blocks of one KV head (kv/head_blocks.h), which every layer of a group has, or none.
  /// Slots of a group are then those of its fullest head; a head that lags behind it by n rows has
  /// n slots less. False = this tier keeps none so.
  virtual bool can_keep_by_head() const { return false; }
  virtual bool is_by_head(uint32_t) const { return false; }
  /// Memory for tables of blocks, which a move by head needs: the bytes it takes where the rows
  /// are, and of the host beside that; taking it; giving it back, which makes no difference while
  /// rows are by head.
  virtual uint64_t head_table_bytes() const { return 0; }
  virtual uint64_t head_table_host_bytes() const { return 0; }
  virtual bool has_head_tables() const { return false; }
  virtual Status take_head_tables() { return Status::ok(); }
  virtual void drop_head_tables() noexcept {}
  /// An empty group's rows are by head from now on, with these lags, head after head of layer after
  /// layer, or with none (empty: as at first). Its capacity becomes what its memory has room for,
  /// at most what was asked for: slots_by_head(). Pre: no fork shares its rows; for lags, the
  /// tables are here.
  virtual uint32_t slots_by_head(uint32_t group, std::span<const uint32_t>) const {
    return capacity(group);
  }
  virtual void lay_out_empty(uint32_t, std::span<const uint32_t>) noexcept {}
  /// Rows of one head, of a layer that is by head, as read_rows().
  virtual Status read_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first,
                                uint32_t n, void* out) const;
  virtual Status write_head_rows(uint32_t layer, uint32_t head, bool value, uint32_t first,
                                 uint32_t n, const void* in);

  /// Rows that forks share. Slots [0, read_only_slots()) of a group can be read, by several stores
  /// at once, and not be written before own_rows().
  virtual uint32_t read_only_slots(uint32_t) const { return 0; }
  virtual uint64_t read_only_bytes(uint32_t) const { return 0; }
  /// The part of held_bytes() that is this store's alone, and the part that other stores hold too.
  virtual uint64_t own_bytes(uint32_t group) const { return held_bytes(group); }
  virtual uint64_t shared_bytes(uint32_t) const { return 0; }
  /// Prepares the whole blocks of n_slots rows for take_shared() of another store. No row changes,
  /// and others may read them meanwhile. `on_free` is told of bytes that go back to the system.
  virtual Status share_rows(uint32_t, uint32_t, const std::function<void(uint64_t)>&) const {
    return Status::ok();
  }
  /// Takes n_slots rows of another store in place. Pre: nothing is committed in the group, and that
  /// store has shared n_slots rows (share_rows()).
  virtual Status take_shared(const KvStore&, uint32_t, uint32_t) { return Status::ok(); }
  /// Makes rows from `slot` on writable; the first n_live rows keep their contents. May fail, then
  /// nothing changed. Takes at most own_rows_bytes() of memory.
  virtual Status own_rows(uint32_t, uint32_t, uint32_t) { return Status::ok(); }
  virtual uint64_t own_rows_bytes(uint32_t, uint32_t) const { return 0; }

  /// Commits memory for n_slots in a group; may fail, then nothing changed.
  virtual Status reserve(uint32_t group, uint32_t n_slots) = 0;
  /// Gives back what lies past n_slots.
  virtual void shrink(uint32_t group, uint32_t n_slots) noexcept = 0;

  /// What stage_moves() takes until they are done, in the memory of the rows.
  virtual uint64_t stage_bytes(std::span<const KvMove>) const { return 0; }
  /// Validates the moves and takes the scratch they need. May fail; nothing visible changes.
  virtual Status stage_moves(std::span<const KvMove> moves) = 0;
  /// Performs the staged moves. Ascending keep lists make an in-place forward copy safe.
  virtual void apply_moves() noexcept = 0;
  virtual void discard_moves() noexcept = 0;

  /// Pieces that are copied to and from copy_room() may be under way until finish_copies().
  virtual CopyRoom copy_room() const { return {}; }
  virtual Status start_reading(uint32_t layer, bool value, uint32_t first, uint32_t n,
                               void* out) const {
    return read_rows(layer, value, first, n, out);
  }
  virtual Status start_writing(uint32_t layer, bool value, uint32_t first, uint32_t n,
                               const void* in) {
    return write_rows(layer, value, first, n, in);
  }
  virtual Status finish_copies() const { return Status::ok(); }
  /// Rows [first, first + n) of a layer (K rows if !value) as they are stored (codec.h), one after
  /// the other. Neither allocates.
  virtual Status read_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                           void* out) const = 0;
  virtual Status write_rows(uint32_t layer, bool value, uint32_t first, uint32_t n,
                            const void* in) = 0;

  /// Recurrent layers: committed state as f32 (layout: tier/session_layout.h).
  virtual uint64_t state_bytes(uint32_t layer,
                               StatePart part) const = 0;  // 0 if not recurrent here
  virtual Status read_state(uint32_t layer, StatePart part, void* out) const = 0;
  virtual Status write_state(uint32_t layer, StatePart part, const void* in) = 0;
  /// The working state becomes the committed one (a chunk is done).
  virtual void commit_state() noexcept = 0;
  /// The same after a pass whose rows may be taken back (SequenceRows::drafted): the first n_rows
  /// of them are kept. Pre: n_rows >= 1.
  virtual void commit_rows(uint32_t n_rows) noexcept = 0;
  /// Zeroes the committed state (an empty session).
  virtual void clear_state() noexcept = 0;

  /// Checkpoint slots of the recurrent state. save copies the committed state into a slot.
  virtual Status save_checkpoint(uint32_t index) = 0;
  virtual Status load_checkpoint(uint32_t index) = 0;
  /// What a checkpoint slot holds of a layer: state_bytes(layer, part) bytes.
  virtual Status read_checkpoint(uint32_t index, uint32_t layer, StatePart part,
                                 void* out) const = 0;
  virtual Status write_checkpoint(uint32_t index, uint32_t layer, StatePart part,
                                  const void* in) = 0;

 protected:
  /// kInternal unless the layer stores rows here and [first, first + n) is within its capacity.
  Status check_rows(uint32_t layer, uint32_t first, uint32_t n) const;
  Status no_heads(uint32_t layer) const;
  /// kInternal unless every keep list ascends and stays within the capacity.
  Status check_moves(std::span<const KvMove> moves) const;
};

CopyRoom::~CopyRoom() {
  if (store_ == nullptr) return;
  static_cast<void>(store_->finish_copies());
  taken_->store(false, std::memory_order_release);
}

}  // namespace sharpi
