// SPDX-License-Identifier: MIT
// Choosing rows by one threshold over all KV heads of all layers: a head that retrieves keeps many
// of its rows, and one that has no use for them a few. In host memory, for tiers that only score.
// Thread rule: as TierModel::choose().
#pragma once

#include <cstdint>
#include <span>

#include "kv/ledger.h"
#include "kv/policy.h"
#include "tier/compact_tables.h"

namespace sharpi {

/// Rows that every head keeps beside the first and the last ones, as far as the budget has them.
inline constexpr uint32_t kFewestScored = 8;

/// Fills the keep lists and counts in `tables` of `layers`, whose terms are held. `policy.budget`
/// is the mean of a head; no head keeps more than `most`.
void choose_shared(const KvLedger& ledger, std::span<const uint32_t> layers,
                   const PolicyParams& policy, uint32_t most, CompactTables& tables);

}  // namespace sharpi
