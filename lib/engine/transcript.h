// SPDX-License-Identifier: MIT
// What a session has read: its tokens, how many rows of which positions each layer has for them,
// and which rows of logits are readable. One class, because they have to agree: between calls there
// are as many tokens as the ledger counts, and every layer holds a row for each that no compaction
// has evicted. Whoever changes one of them does so by a verb of this class, and no verb fails: what
// they need is taken before, and bytes have moved before they are called.
// Owns no KV bytes. Thread rule: as Session.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "kv/kv_store.h"
#include "kv/ledger.h"

namespace sharpi {

/// Rows of logits that the head's tier holds: row 0 is the last token's.
struct LogitRows {
  uint32_t n = 0;
  uint32_t first = 0;  // of the tier's rows; not 0 after drafts that were rejected
};

class Transcript {
 public:
  const KvLedger& ledger() const { return ledger_; }
  /// Oldest first, those that are tried included.
  std::span<const int32_t> tokens() const { return tokens_; }
  const LogitRows& logit_rows() const { return logit_rows_; }
  /// The first so many tokens were read with other adapters than those behind them.
  uint32_t other_tokens() const { return n_other_; }
  uint64_t token_bytes() const { return tokens_.capacity() * sizeof(int32_t); }
  /// kInternal: tokens and rows do not agree, which nothing may compute from.
  Status check() const;

  /// Nothing was read; room for n_ctx tokens. May throw std::bad_alloc.
  void begin(KvLedger empty, uint32_t n_ctx);
  /// A pass has read these tokens, and has left so many rows of logits.
  void commit(std::span<const int32_t> tokens, uint32_t n_logit_rows) noexcept;

  // Tokens of a pass that turn out right or wrong one by one.

  /// The pass has read this token behind those before; `row` of the tier's logits is its own.
  void try_token(int32_t token, uint32_t row) noexcept;
  /// The tokens that were tried count.
  void commit_tried() noexcept;
  /// They were never there, and no logits are left.
  void take_back_tried() noexcept;

  /// A pass over n_rows tokens behind the last one has failed. It may have overwritten captured
  /// queries, logits and, with `rings_written`, rows of sliding windows; its first n_spare rows
  /// overwrite only rows that no window sees any more.
  void fail(uint32_t n_rows, bool rings_written, uint32_t n_spare) noexcept;
  /// Passes that failed one behind the other have overwritten the recurrent state of what was read:
  /// nothing may compute before the session goes back to a state that it has.
  void lose_state() noexcept { state_lost_ = true; }
  bool has_state() const { return !state_lost_; }
  /// What follows the first n_tokens is read with other adapters. Pre: there are as many.
  void note_other_adapters(uint32_t n_tokens) noexcept { n_other_ = n_tokens; }
  /// KvLedger::set_positions().
  void set_positions(uint32_t layer, uint32_t head, std::span<const uint32_t> positions) noexcept {
    ledger_.set_positions(layer, head, positions);
  }
  /// All rows have their replay scores.
  void mark_scored() noexcept { ledger_.mark_scored(); }
  /// The first n_tokens are left, and no logits. Pre: reachable.
  void take_back(uint32_t n_tokens) noexcept;
  /// Logits of the last token were written back.
  void found_logits() noexcept { logit_rows_ = {1, 0}; }
  /// The rows of these layers moved. Pre: reserve_positions().
  void compact(std::span<const KvMove> moves) noexcept;
  /// The first `shift` tokens are forgotten, and positions count from behind them. Pre: as
  /// KvLedger::rebase().
  void shift_context(uint32_t shift) noexcept;
  /// What a saved session says; fill_ledger(KvLedger*) does so for rows and positions. Pre: nothing
  /// is read, and there is room.
  template <class FillLedger>
  void restore(std::span<const int32_t> tokens, uint32_t n_logit_rows,
               const FillLedger& fill_ledger) noexcept {
    fill_ledger(&ledger_);
    tokens_.assign(tokens.begin(), tokens.end());
    logit_rows_ = {n_logit_rows, 0};
  }
  /// Of a session of the same template. May throw std::bad_alloc.
  void copy_from(const Transcript& from);

  /// KvLedger's.
  void reserve_positions(uint32_t capacity) { ledger_.reserve_positions(capacity); }
  void release_positions() noexcept { ledger_.release_positions(); }

 private:
  KvLedger ledger_;
  std::vector<int32_t> tokens_;  // capacity n_ctx from the start
  uint32_t n_tried_ = 0;         // of them, behind those that the ledger counts
  uint32_t n_other_ = 0;         // of those that the ledger counts, the first
  bool state_lost_ = false;
  LogitRows logit_rows_;
};

}  // namespace sharpi
