// SPDX-License-Identifier: MIT
// Rows that compactions evicted, in host memory: of every KV head its own, as they are stored, each
// in a slot of its own in blocks of 16 whose keys have bounds: minimum and maximum of each element.
// The largest product of a query with any key of a block is at most what the bounds give, so a
// block is scored without its rows (query-aware selection of pages: Quest, arXiv 2406.10774).
// Bounds are bf16, rounded away from the keys. Rows that come take the lowest free slots in the
// order of their positions, and move no others: rows of neighbouring positions mostly share a
// block. Where a head has no room, its rows of the lowest positions go. Owns its memory, which
// reserve() takes and the plan prices. Nothing else allocates or fails. Thread rule: one owner (the
// session).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_layout.h"
#include "kv/kv_view.h"
#include "model/model_spec.h"

namespace sharpi {

/// Slots of an archive whose keys share bounds.
inline constexpr uint32_t kArchiveBlock = 16;
/// In place of a position: the slot is free.
inline constexpr uint32_t kNoRow = UINT32_MAX;

class RowArchive {
 public:
  /// Reads rows of one head where they are: its own part of K (or V) rows, planes one behind the
  /// other.
  class Source {
   public:
    virtual ~Source() = default;
    virtual void read(uint32_t i, bool value, std::byte* to) const = 0;
    virtual uint32_t position(uint32_t i) const = 0;
    virtual float score(uint32_t i) const = 0;  // its replay score, where there are any
  };

  /// What reserve() takes.
  static uint64_t bytes_for(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                            uint32_t n_rows, uint32_t n_slots);
  /// For n_rows rows, in whole blocks, of every KV head of layers of full attention that own rows,
  /// of a session of n_slots slots. Throws std::bad_alloc; then nothing was taken.
  void reserve(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes, uint32_t n_rows,
               uint32_t n_slots);
  bool is_reserved() const { return !heads_.empty(); }
  uint64_t bytes() const { return memory_.size() + slots_.size() * sizeof(uint32_t); }
  /// Room for a list of the session's slots for each head of a layer, of so many at most.
  std::span<uint32_t> slots(uint32_t head) {
    return std::span(slots_).subspan(uint64_t{head} * n_slots_, n_slots_);
  }
  uint32_t n_slots() const { return n_slots_; }

  /// Rows that a head has room for.
  uint32_t capacity() const { return capacity_; }
  /// 0 for layers without an archive.
  uint32_t n_heads(uint32_t layer) const { return n_heads_[layer]; }
  uint32_t n_rows(uint32_t layer, uint32_t head) const { return at(layer, head).n_rows; }
  /// By slot, kNoRow where it is free; slots behind these are free.
  std::span<const uint32_t> positions(uint32_t layer, uint32_t head) const;
  const std::byte* row(uint32_t layer, uint32_t head, bool value, uint32_t slot) const;
  uint32_t row_bytes(uint32_t layer, bool value) const { return at(layer, 0).row_bytes(value); }
  float score(uint32_t layer, uint32_t head, uint32_t slot) const;
  /// The lower bounds of the keys of a block, and behind them the upper: [2][head_dim], bf16. Of a
  /// block from which rows have gone they may be wide.
  std::span<const uint16_t> bounds(uint32_t layer, uint32_t head, uint32_t block) const;
  /// Whose bounds have changed since whoever has a copy of them was here: a byte a block.
  std::span<uint8_t> changed(uint32_t layer, uint32_t head);

  /// n rows of a head go here, ascending by position, none of which is here already.
  void insert(uint32_t layer, uint32_t head, uint32_t n, const Source& rows) noexcept;
  /// The rows in some slots of a head go.
  void remove(uint32_t layer, uint32_t head, std::span<const uint32_t> slots) noexcept;
  /// Positions become smaller by `by`; rows whose position would be below `least` go.
  void shift(uint32_t by, uint32_t least) noexcept;
  void clear() noexcept;
  /// Takes over what `from` holds. Pre: reserved for the same.
  void copy_from(const RowArchive& from) noexcept;

 private:
  struct Head {
    uint64_t first = 0;            // where its part of the memory begins
    uint32_t n_rows = 0, end = 0;  // slots from `end` on are free
    uint32_t dim = 0, k_bytes = 0, v_bytes = 0;
    KvDtype k_dtype = KvDtype::kF32;
    uint32_t row_bytes(bool value) const { return value ? v_bytes : k_bytes; }
  };
  static std::vector<Head> heads_of(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                                    uint32_t capacity, uint64_t* end);
  const Head& at(uint32_t layer, uint32_t head) const { return heads_[first_[layer] + head]; }
  Head& at(uint32_t layer, uint32_t head) { return heads_[first_[layer] + head]; }
  uint32_t* positions_of(const Head& h) const;
  float* scores_of(const Head& h) const;
  std::byte* rows_of(const Head& h, bool value) const;
  uint16_t* bounds_of(const Head& h) const;
  uint8_t* changed_of(const Head& h) const;
  void drop_below(Head* h, uint32_t position) noexcept;
  uint32_t make_room(Head* h, uint32_t n, const Source& rows) noexcept;
  void summarise(const Head& h, uint32_t block) noexcept;

  uint32_t capacity_ = 0, n_slots_ = 0;
  std::vector<Head> heads_;
  std::vector<uint32_t> first_, n_heads_;  // per layer
  mutable std::vector<std::byte> memory_;
  std::vector<uint32_t> slots_;
};

}  // namespace sharpi
