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

/// Whether the scores of a policy can be had here, and, unless rows are chosen on the host, whether
/// the kernels can do what its row of the table combines. A combination that they lack is refused
/// by name: it would keep other rows than the CPU tier does.
Status check_policy(const PolicyRow& row, bool on_host);

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
