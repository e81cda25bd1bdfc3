// SPDX-License-Identifier: MIT
// Choosing on the device which KV rows a compaction keeps: the terms of all layers stay in the
// scoring scratch, and only the lists of kept slots are copied to the host.
// Thread rule: a scratch has one owner (a compaction).
#pragma once

#include <span>

#include "device/kernel_params.h"
#include "device/loaded_model.h"
#include "device/scoring.h"

namespace sharpi::device {

/// TierModel's three steps.
class Choosing {
 public:
  Choosing(const LoadedModel& model, const Scoring& scoring) : m_(model), scoring_(scoring) {}
  Status hold_terms(TierSession& session, const ScoreRequest& request, sharpi_policy policy,
                    ScoreScratch& scratch, CompactTables& tables) const;
  Status share_hits(const KvLedger& ledger, std::span<const uint32_t> layers, ScoreScratch& scratch,
                    CompactTables& tables) const;
  Status choose(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                ScoreScratch& scratch, CompactTables& tables) const;

 private:
  Status send_positions(const KvLedger& ledger, const DeviceScoreScratch& s,
                        const DeviceScoreScratch::Layer& layer, RowPositions* out) const;
  Status send_hits(std::span<const float> shared, const DeviceScoreScratch& s) const;
  Status send_lists(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                    DeviceScoreScratch& s, SelectParams* out) const;
  Status read_lists(const KvLedger& ledger, std::span<const ChooseRequest> layers,
                    DeviceScoreScratch& scratch, CompactTables& tables) const;

  const LoadedModel& m_;
  const Scoring& scoring_;
};

}  // namespace sharpi::device
