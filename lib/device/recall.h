// SPDX-License-Identifier: MIT
// A recall on the device (engine/recaller.h): bounds of archived keys, and archived rows beside the
// session's own, are scored by the queries that are there; rows change places. Kernels read and
// write what is wanted of the archive where it is, in pinned memory (archive_rows.h). Thread rule: a
// scratch has one owner.
#pragma once

#include <cstdint>
#include <span>

#include "device/scoring.h"
#include "kv/row_archive.h"
#include "tier/remote_rows.h"

namespace sharpi::device {

/// What the steps of a recall need in turn, of the layer with most heads and the widest ones.
struct RecallBytes {
  uint64_t device = 0, pinned = 0;
};
RecallBytes recall_bytes(const ScoreShape& shape, uint32_t n_kv_heads, uint32_t head_dim);

class Recalls {
 public:
  Recalls(const LoadedModel& model, const Scoring& scoring) : m_(model), scoring_(scoring) {}
  /// TierModel::score_bounds() and score_beside().
  Status score_bounds(TierSession& session, const ScoreRequest& request, RowArchive& archive,
                      ScoreScratch& scratch, float* out, uint32_t stride) const;
  Status score_beside(TierSession& session, const ScoreRequest& request,
                      const ArchivedRows& archived, ScoreScratch& scratch, float* out,
                      uint32_t stride) const;

 private:
  struct Keys;
  Status gather_keys(DeviceSession& own, const ScoreRequest& request, const ArchivedRows& archived,
                   DeviceScoreScratch& s, Keys* keys) const;
  Status score_keys(DeviceSession& own, const ScoreRequest& request, const ArchivedRows& archived,
                    DeviceScoreScratch& s, const Keys& keys, ScoreParams t) const;
  const LoadedModel& m_;
  const Scoring& scoring_;
};

/// RemoteRows::exchange(), with a fault as its answer.
Status exchange_rows(DeviceSession& own, uint32_t layer, std::span<const HeadExchange> heads,
                     const RowArchive& archive, DeviceScoreScratch& s);

}  // namespace sharpi::device
