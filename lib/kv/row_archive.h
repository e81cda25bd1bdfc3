// SPDX-License-Identifier: MIT
// Rows that compactions evicted, in host memory: of every KV head its own, as they are stored, each
// in a slot of its own in blocks of 16 whose keys have bounds: minimum and maximum of each element.
// The largest product of a query with any key of a block is at most what the bounds give, so a
// block is scored without its rows (query-aware selection of pages: Quest, arXiv 2406.10774).
// Bounds are bf16, rounded away from the keys; those of a block with rows only widen. Rows that
// come take the lowest free slots in the order of their positions, and move no others: rows of
// neighbouring positions mostly share a block. Where a head has no room, its rows of the lowest
// positions go. A tier may lend the memory of its layers (tier/remote_rows.h), so that its kernels
// read and write rows there; then it has their bounds, too. Owns the memory of the others, which
// reserve() takes and the plan prices. Nothing else allocates or fails. Thread rule: one owner (the
// session).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
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
/// Beside a slot that a row takes: its block has no other row, and so its bounds begin anew.
inline constexpr uint32_t kBegins = 1u << 31;

class RowArchive {
 public:
  /// Rows of one head, ascending by position.
  class Positions {
   public:
    virtual ~Positions() = default;
    virtual uint32_t position(uint32_t i) const = 0;
  };
  /// Reads them where they are: the head's own part of K (or V) rows, planes one behind the other.
  class Source : public Positions {
   public:
    virtual void read(uint32_t i, bool value, std::byte* to) const = 0;
    virtual float score(uint32_t i) const = 0;  // its replay score, where there are any
  };

  /// Memory of a layer that a tier lends, lent_bytes() of it, aligned to 16; null: it does not.
  using Lender = std::function<std::byte*(uint32_t layer)>;
  /// Of a layer's heads: positions, scores and rows. 0 for layers without an archive.
  static uint64_t lent_bytes(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                             uint32_t layer, uint32_t n_rows);
  /// What reserve() takes itself; is_lent: whether a tier lends a layer's memory.
  static uint64_t bytes_for(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                            uint32_t n_rows, uint32_t n_slots,
                            const std::function<bool(uint32_t layer)>& is_lent);
  /// For n_rows rows, in whole blocks, of every KV head of layers of full attention that own rows,
  /// of a session of n_slots slots. Throws std::bad_alloc; then nothing was taken.
  void reserve(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes, uint32_t n_rows,
               uint32_t n_slots, const Lender& lender);
  bool is_reserved() const { return !heads_.empty(); }
  uint64_t bytes() const {
    return memory_.size() + key_.size() * sizeof(float) + slots_.size() * sizeof(uint32_t);
  }
  /// Room for lists of the session's slots, and of those of the archive that their rows take, for
  /// each head of a layer, of so many at most.
  std::span<uint32_t> slots(uint32_t head) { return list(2 * uint64_t{head}); }
  std::span<uint32_t> places(uint32_t head) { return list(2 * uint64_t{head} + 1); }
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
  /// By slot.
  const float* scores(uint32_t layer, uint32_t head) const { return scores_of(at(layer, head)); }
  float score(uint32_t layer, uint32_t head, uint32_t slot) const {
    return scores(layer, head)[slot];
  }
  /// The lower bounds of the keys of a block, and behind them the upper: [2][head_dim], bf16. Of a
  /// block from which rows have gone they may be wide. Pre: no tier lends the layer's memory.
  std::span<const uint16_t> bounds(uint32_t layer, uint32_t head, uint32_t block) const;

  /// n rows of a head go here, ascending by position, none of which is here already. Pre: no tier
  /// lends the layer's memory.
  void insert(uint32_t layer, uint32_t head, uint32_t n, const Source& rows) noexcept;
  /// The same where one does, which brings rows, scores and bounds itself: row i takes the slot
  /// places[i], with kBegins or without, but for the first ones, for which there is no room; their
  /// number.
  uint32_t place(uint32_t layer, uint32_t head, uint32_t n, const Positions& rows,
                 uint32_t* places) noexcept;
  /// Rows in some slots of a head, ascending, go, and as many others come in their places; and the
  /// same where a tier brings them. `slots` may be `places`.
  void replace(uint32_t layer, uint32_t head, std::span<const uint32_t> slots,
               const Source& rows) noexcept;
  void replace(uint32_t layer, uint32_t head, std::span<const uint32_t> slots,
               const Positions& rows, uint32_t* places) noexcept;
  /// Positions become smaller by `by`; rows whose position would be below `least` go.
  void shift(uint32_t by, uint32_t least) noexcept;
  void clear() noexcept;
  /// Takes over what `from` holds, but for bounds that tiers have. Pre: reserved for the same.
  void copy_from(const RowArchive& from) noexcept;

 private:
  struct Head {
    std::byte* base = nullptr;     // of its part of the memory
    uint64_t bytes = 0;            // of that
    uint32_t n_rows = 0, end = 0;  // slots from `end` on are free
    uint32_t dim = 0, k_bytes = 0, v_bytes = 0;
    KvDtype k_dtype = KvDtype::kF32;
    bool lent = false;
    uint32_t row_bytes(bool value) const { return value ? v_bytes : k_bytes; }
  };
  static Head head_of(const LayerSpec& layer, const KvDtypePair& dtypes, uint32_t capacity,
                      bool lent);
  const Head& at(uint32_t layer, uint32_t head) const { return heads_[first_[layer] + head]; }
  Head& at(uint32_t layer, uint32_t head) { return heads_[first_[layer] + head]; }
  std::span<uint32_t> list(uint64_t i) { return std::span(slots_).subspan(i * n_slots_, n_slots_); }
  uint32_t* positions_of(const Head& h) const;
  float* scores_of(const Head& h) const;
  std::byte* rows_of(const Head& h, bool value) const;
  uint16_t* bounds_of(const Head& h) const;
  bool is_empty(const Head& h, uint32_t block) const;
  void drop_below(Head* h, uint32_t position) noexcept;
  uint32_t make_room(Head* h, uint32_t n, const Positions& rows) noexcept;
  void put(const Head& h, uint32_t place, uint32_t i, const Source& rows) noexcept;
  void widen(const Head& h, uint32_t slot, bool begins) noexcept;
  template <class Put>
  uint32_t place_each(Head* h, uint32_t n, const Positions& rows, const Put& put) noexcept;
  template <class Put>
  void replace_each(Head* h, std::span<const uint32_t> slots, const Positions& rows,
                    const Put& put) noexcept;

  uint32_t capacity_ = 0, n_slots_ = 0;
  std::vector<Head> heads_;
  std::vector<uint32_t> first_, n_heads_;  // per layer
  std::vector<std::byte> memory_;          // of heads that are not lent
  std::vector<float> key_;                 // one, decoded
  std::vector<uint32_t> slots_;
};

}  // namespace sharpi
