// SPDX-License-Identifier: MIT
// The host-side truth of a session: how many tokens it has read, how many rows each layer holds,
// and which positions compacted rows have. Owns no KV bytes. Only the engine changes it, after
// every tier has done its part. Thread rule: one owner (the session).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "kv/kv_store.h"
#include "model/model_spec.h"

namespace sharpi {

/// Rows of one full-attention layer: of its fullest KV head, behind which others may lag
/// (KvLedger::lag()).
struct LayerRows {
  uint32_t n_slots = 0;        // live rows
  uint32_t n_compacted = 0;    // the first of them were placed by compaction
  uint32_t tail_position = 0;  // position of slot n_compacted; later slots follow on
  uint32_t n_lists = 0;  // of positions of the compacted rows: 0, 1 (all heads agree), n_heads
};

/// Lengths and positions of one session. Positions are those of tokens, slots those of rows; they
/// are equal until a compaction.
class KvLedger {
 public:
  KvLedger() = default;
  /// `window` and `ring_slots` of the narrowest sliding-window layers; 0 = none.
  KvLedger(const ModelSpec& spec, uint32_t window, uint32_t ring_slots);

  uint32_t n_tokens() const { return n_tokens_; }
  /// Absolute positions, as RoPE and the ring buffers of rows and queries count them. They never
  /// start again at 0: that of the ledger's token 0, and that of the next token. All other
  /// positions in this class count from the base.
  uint64_t base() const { return base_; }
  uint64_t next_position() const { return base_ + n_tokens_; }
  bool is_compacted() const { return compacted_; }
  /// Live rows of the layer that `layer` reads (its source when it shares KV). 0 for rings, delta
  /// nets.
  uint32_t n_slots(uint32_t layer) const { return rows_[source_[layer]].n_slots; }
  /// The same of one KV head; n_slots(layer) is the fullest head's.
  uint32_t n_slots(uint32_t layer, uint32_t head) const {
    return n_slots(layer) - lag(layer, head);
  }
  /// By how many rows, all of them placed by compaction, a head has fewer than the layer's fullest.
  uint32_t lag(uint32_t layer, uint32_t head) const {
    const uint32_t owner = source_[layer];
    return n_heads_[owner] == 0 ? 0 : lags_[first_list_[owner] + head];
  }
  /// Rows of all KV heads of a layer that owns them.
  uint64_t rows_of_heads(uint32_t layer) const;
  /// Whether a compaction kept another count of rows in every head: rows are in blocks of one head.
  bool is_by_head() const { return by_head_; }
  /// Of the emptiest and of the fullest head of any layer.
  uint32_t min_slots() const;
  uint32_t max_slots() const;
  /// Live rows of the fullest layer of a group that is no ring; the group has memory for as many
  /// rows of each of its layers.
  uint32_t fullest(const KvGroup& group) const;
  const LayerRows& rows(uint32_t layer) const { return rows_[source_[layer]]; }
  uint32_t n_layers() const { return static_cast<uint32_t>(rows_.size()); }
  bool is_full_owner(uint32_t layer) const { return full_owner_[layer]; }
  uint32_t ring_high() const { return ring_high_; }

  /// n more tokens were read: one row each in every full-attention layer.
  void commit(uint32_t n);
  /// A chunk of n tokens failed: it may have written over captured queries.
  void spoil_capture(uint32_t n);
  /// A chunk of n tokens failed after it had written into the ring buffers of sliding windows: they
  /// hold rows of tokens that were not read. Its first `n_spare` rows overwrite only rows that no
  /// window sees any more.
  void spoil_rings(uint32_t n, uint32_t n_spare) {
    if (n_tokens_ != 0 && n > n_spare) store_in_rings(n_tokens_ + n - n_spare);
  }
  /// Whether the rings hold every row that the next token sees.
  bool rings_are_whole() const { return ring_low_ == 0 || ring_low_ + window_ <= n_tokens_; }
  /// Captured queries: positions [capture_low, n_tokens).
  uint32_t capture_low() const { return capture_low_; }
  void set_capture_window(uint32_t window) { capture_window_ = window; }
  /// Replay scores: rows of tokens [0, scored_tokens) have theirs; the others' queries wait in the
  /// ring. They are the last rows of every layer, and no compaction has moved them.
  uint32_t scored_tokens() const { return scored_tokens_; }
  void mark_scored() { scored_tokens_ = n_tokens_; }
  /// Rows of a KV head whose position is at most p: slots [0, rows_up_to).
  uint32_t rows_up_to(uint32_t layer, uint32_t head, uint64_t p) const;
  /// Memory for the positions of up to `capacity` rows a KV head; needed before set_compacted().
  /// Throws std::bad_alloc; then nothing changed.
  void reserve_positions(uint32_t capacity);
  /// What that takes.
  uint64_t bytes_of_positions(uint32_t capacity) const;
  /// Pre: no row was placed by a compaction.
  void release_positions() noexcept;
  uint64_t position_bytes() const { return positions_.capacity() * sizeof(uint32_t); }
  /// Positions of a layer's compacted rows, ascending; list 0 is every head's if there is only one.
  /// Of one head, they are as many fewer as it lags behind.
  std::span<const uint32_t> positions(uint32_t layer, uint32_t list) const;
  /// After compaction of one layer: slots that stayed, per head or one list for all. No-op if all
  /// rows stayed.
  void set_compacted(uint32_t layer, const KeepLists& keep) noexcept;
  /// Other rows took the places of some in a head: its positions, as many as it has rows. Heads of
  /// a layer come from the last to the first; after the first, all of the layer's rows count as
  /// placed by a compaction.
  void set_positions(uint32_t layer, uint32_t head, std::span<const uint32_t> positions) noexcept;
  /// Rows are in blocks of one head from now on, until the session is empty again.
  void set_by_head() noexcept { by_head_ = true; }
  /// The lowest length to which the rings can be truncated: 0 while nothing was overwritten, else
  /// as far back as the rewind. The engine knows about evicted rows and recurrent layers.
  uint32_t ring_floor() const { return ring_low_ == 0 ? 0 : ring_low_ + window_; }
  /// Lowest position whose row the rings still hold.
  uint32_t ring_low() const { return ring_low_; }
  /// Highest evicted position + 1: truncation below it would need rows that are gone. 0 = none.
  uint32_t evicted_floor() const { return evicted_floor_; }
  /// Drops rows with position >= n. Pre: reachable.
  void truncate(uint32_t n);
  /// Moves the base on by `shift` tokens: positions become smaller by it, but those of compacted
  /// rows no smaller than their slot. Pre: n_tokens() - shift >= max_slots().
  void rebase(uint32_t shift) noexcept;
  /// Makes the ledger one of a session that has read n tokens from position `base` on and evicted
  /// no rows. Positions and the bounds of rings and captured queries start anew.
  void restart(uint64_t base, uint32_t n) noexcept;
  /// rebase(shift) lowers this row's position by `shift` less this number. Its key has to be
  /// rotated by RoPE over as many positions (tier/key_shift.h).
  uint32_t positions_behind(uint32_t layer, uint32_t head, uint32_t slot, uint32_t shift) const {
    const uint64_t least = uint64_t{slot} + shift, now = position(layer, head, slot);
    return least > now ? static_cast<uint32_t>(least - now) : 0;
  }
  /// Position of a live row.
  uint32_t position(uint32_t layer, uint32_t head, uint32_t slot) const;

 private:
  friend class LedgerCodec;  // save and restore
  /// Rings hold rows of positions up to `end` now.
  void store_in_rings(uint32_t end);
  uint64_t base_ = 0;
  uint32_t n_tokens_ = 0;
  uint32_t ring_high_ = 0;  // highest position ever stored in rings, plus one
  uint32_t ring_low_ = 0;   // lowest position not overwritten
  uint32_t window_ = 0, ring_slots_ = 0;
  uint32_t evicted_floor_ = 0;
  uint32_t capture_window_ = 0, capture_low_ = 0;
  uint32_t scored_tokens_ = 0;
  bool compacted_ = false, by_head_ = false;
  void forget_heads() noexcept;
  bool all_stay(uint32_t layer, const KeepLists& keep) const;
  uint32_t* list(uint32_t layer, uint32_t index) {
    return positions_.data() + (first_list_[layer] + index) * stride_;
  }
  std::vector<LayerRows> rows_;
  std::vector<uint64_t> first_list_;  // per layer
  std::vector<uint32_t> n_heads_;     // KV heads per layer, 0 = owns no full-attention rows
  std::vector<uint32_t> lags_;        // of each KV head, in the order of lists
  uint64_t stride_ = 0;               // of position lists; 0 = no memory yet
  std::vector<uint32_t> positions_;
  std::vector<uint32_t> source_;
  std::vector<bool> full_owner_;
};

}  // namespace sharpi
