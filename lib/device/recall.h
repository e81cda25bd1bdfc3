// SPDX-License-Identifier: MIT
// A recall on the device (engine/recaller.h): bounds of archived keys, and archived rows beside the
// session's own, are scored by the queries that are there, blocks and rows are chosen (as for a
// compaction, choosing.h), and rows change places. Kernels read and write what is wanted of the
// archive where it is, in pinned memory (archive_rows.h); the host makes lists, while the device
// works on the layer before, and gets lists. Thread rule: a scratch has one owner.
#pragma once

#include <cstdint>
#include <span>

#include "device/scoring.h"
#include "kv/row_archive.h"
#include "tier/recall_tables.h"
#include "tier/remote_rows.h"

namespace sharpi::device {

/// What the steps of a recall need in turn, of the layer with most heads and the widest ones: on
/// the device, on each of two pinned desks, and what is found in all lists. Lists of several layers
/// are chosen from at once, as many as there is room for.
struct RecallBytes {
  uint64_t device = 0, desk = 0, found = 0;
};
RecallBytes recall_bytes(const ScoreShape& shape, uint32_t n_kv_heads, uint32_t n_lists);

/// TierModel's steps of a recall.
class Recalls {
 public:
  Recalls(const LoadedModel& model, const Scoring& scoring) : m_(model), scoring_(scoring) {}
  Status find_blocks(TierSession& session, const ScoreRequest& request, const RowArchive& archive,
                     ScoreScratch& scratch, RecallTables& tables) const;
  Status score_blocks(TierSession& session, const ScoreRequest& request, const RowArchive& archive,
                      ScoreScratch& scratch, RecallTables& tables) const;
  Status choose_rows(TierSession& session, const ScoreRequest& request, const RowArchive& archive,
                     ScoreScratch& scratch, RecallTables& tables) const;
  Status take(RecallStep step, ScoreScratch& scratch, RecallTables& tables) const;

 private:
  struct Keys;
  Status score_bounds(const DeviceSession& own, const ScoreRequest& request, DeviceScoreScratch& s,
                      const DeviceScoreScratch::Layer& layer, float* out, uint32_t n_blocks) const;
  Keys keys_of(const DeviceSession& own, const ScoreRequest& request, const RecallTables& tables,
               uint32_t most) const;
  Status score_keys(DeviceSession& own, const ScoreRequest& request, DeviceScoreScratch& s,
                    const DeviceScoreScratch::Layer& layer, const uint32_t* n_listed,
                    const Keys& keys) const;
  Status take_hits(const DeviceSession& own, const ScoreRequest& request, const RowArchive& archive,
                   DeviceScoreScratch& s, const HeldTerms& in, const HeldTerms& out,
                   const uint32_t* positions) const;
  Status room_of_lists(RecallStep step, DeviceScoreScratch& s, const RecallTables& tables,
                       uint64_t front, uint64_t bytes, std::byte** room) const;
  Status choose_waiting(RecallStep step, DeviceScoreScratch& s, const RecallTables& tables) const;
  const LoadedModel& m_;
  const Scoring& scoring_;
};

/// RemoteRows::exchange(), with a fault as its answer.
Status exchange_rows(DeviceSession& own, uint32_t layer, std::span<const HeadExchange> heads,
                     const RowArchive& archive, DeviceScoreScratch& s);

}  // namespace sharpi::device
