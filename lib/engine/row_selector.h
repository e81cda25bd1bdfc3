// SPDX-License-Identifier: MIT
// Selects the KV rows that a compaction keeps: has the tiers score the rows of their layers by the
// observed queries, and the policy choose by the scores. Owns the scoring scratch, one for each
// tier, and the tables of the choice. Both are taken with the session if its template captures
// queries, otherwise for the time of each compaction.
// Thread rule: as Session. Changes no rows; in the ledger it only reserves room for the positions
// of the kept rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/compact_request.h"
#include "engine/session_core.h"
#include "kv/kv_store.h"
#include "tier/compact_tables.h"

namespace sharpi {

class RowSelector {
 public:
  explicit RowSelector(SessionCore& core) : core_(core) {}
  /// What the template was priced for. May throw std::bad_alloc.
  Status create();
  /// What the request needs of the tables, and the ledger's room for positions, within the
  /// session's share. Ok or not, give_tables_back() follows. May throw std::bad_alloc.
  Status take_tables(const CompactRequest& r);
  void give_tables_back() noexcept;

  /// The moves that leave what the request keeps: none where everything fits. They point into the
  /// tables and the request, until those go back. Ok or not, finish() follows. May throw
  /// std::bad_alloc.
  Status select(const CompactRequest& r, std::vector<KvMove>* moves);
  /// Gives rows their replay scores that wait for them. They count once the transcript says so.
  Status score_waiting();
  /// Waits for what scores, and gives scratch back that was not priced.
  void finish() noexcept;

  std::vector<MemoryRow> scratch_rows() const;
  uint64_t table_bytes() const { return tables_.is_reserved() ? tables_.bytes() : 0; }

 private:
  Result<ScoreScratch*> scratch_for(const CompactRequest& r, size_t tier);
  ScoreRequest score_request(const CompactRequest& r, uint32_t layer) const;
  Status score_layer(const CompactRequest& r, uint32_t layer, LayerScores* out);
  Status layer_budgets(const CompactRequest& r, std::span<const uint32_t> layers,
                       std::vector<uint32_t>* out);
  Status select_global(const CompactRequest& r, std::span<const uint32_t> layers,
                       std::vector<KvMove>* moves);
  std::vector<uint32_t> layers_of(size_t tier, std::span<const uint32_t> layers) const;
  Status hold_all_terms(const CompactRequest& r, std::span<const uint32_t> layers);
  Status choose_rows(const CompactRequest& r, std::span<const uint32_t> layers,
                     std::span<const uint32_t> budgets);
  Status check_heads_apart(std::span<const uint32_t> layers) const;
  Status select_per_head(const CompactRequest& r, std::span<const uint32_t> layers,
                         std::vector<KvMove>* moves);
  Status select_shared(const CompactRequest& r, std::span<const uint32_t> layers,
                       std::vector<KvMove>* moves);
  Status keep_going(const CompactRequest& r, size_t done, size_t total) const;

  SessionCore& core_;
  Lease tables_of_call_{core_.share}, scratch_of_call_{core_.share};
  CompactTables tables_;
  std::vector<std::unique_ptr<ScoreScratch>> priced_;   // per tier, for the template's compactions
  std::vector<std::unique_ptr<ScoreScratch>> of_call_;  // per tier, of a compaction not priced
  uint32_t priced_queries_ = 0;
  bool priced_values_ = false;
};

}  // namespace sharpi
