// SPDX-License-Identifier: MIT
// What the engine asks of a tier when rows are scored and chosen. Thread rule: plain values; a
// scratch has one user at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/ledger.h"
#include "kv/policy.h"
#include "plan/tier_sizer.h"

namespace sharpi {

class RowArchive;

/// Where the queries of full-attention layers go during a pass.
enum class Capture : uint8_t {
  kRing,                // the session's ring of the last capture_window queries, if it has one
  kObserver,            // the session's observer rows: a look-ahead or a probe of one pass
  kObserverByPosition,  // the same as a ring by position: a probe of several passes
};
/// Whether a query's row follows from its position, otherwise from its place in the pass.
inline bool is_by_position(Capture c) {
  return c != Capture::kObserver;
}

/// A request to score the rows of `layer`, which owns them, by observed queries.
struct ScoreRequest {
  uint32_t layer = 0;
  const KvLedger* ledger = nullptr;
  Capture source = Capture::kRing;
  uint32_t n_queries = 0;
  uint64_t first_position = 0;  // of the oldest query, counted like those; the others follow on
  bool values = false;          // also the value norms
  bool replay = false;          // also the replay scores
  bool on_host = false;         // rows are chosen in host memory: there the terms are held
  float half_life = 0.0f;  // queries after which a term in LayerScores::max counts half; 0 = never
};

/// Archived rows that are scored beside those of a session, a list for each KV head of a layer: of
/// head h those in slots rows[h * stride + i] of the archive, i < n[h].
struct ArchivedRows {
  const RowArchive* archive = nullptr;
  const uint32_t *rows = nullptr, *n = nullptr;
  uint32_t stride = 0;
};

/// Per query of a request, for a layer of n_heads KV heads: how many rows of each head it sees,
/// visible[n_heads][n_queries], and what its terms count, weights[n_queries].
void describe_queries(const ScoreRequest& request, uint32_t n_heads, uint32_t* visible,
                      float* weights);

/// The most that a scoring scratch has to take.
struct ScoreShape {
  uint32_t n_slots = 0, n_queries = 0;
  uint32_t n_positions = 0;  // of the session: n_ctx
  bool values = false;
  bool replay = false;  // also for TierModel::score_waiting()
  /// Of a recall, 0 otherwise: of a KV head, archived rows that are scored beside the session's
  /// (n_slots has both), blocks of them, and rows that change places; the bytes of a head's key and
  /// of its row, the widest ones.
  uint32_t n_archived = 0, n_blocks = 0, n_exchanged = 0;
  uint32_t key_bytes = 0, row_bytes = 0;
};

/// Scratch of one compaction.
class ScoreScratch {
 public:
  virtual ~ScoreScratch() = default;
  virtual std::vector<MemoryRow> memory_rows() const = 0;
  /// Waits for what is under way with this scratch.
  virtual void finish() noexcept {}
};

/// How many rows of a layer shall stay, and by what policy; one for all layers of a call.
struct ChooseRequest {
  uint32_t layer = 0;
  PolicyParams policy;
};

}  // namespace sharpi
