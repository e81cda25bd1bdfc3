// SPDX-License-Identifier: MIT
// The block for multi-token prediction as a plan of its own beside the model's: a model of one
// layer where the head is, which serves both. On the host its weights are among the rows of the
// model that it belongs to; on a device they are its own, but for what the model lends it.
// Thread rule: pure functions.
#pragma once

#include <vector>

#include "base/limits.h"
#include "plan/plan.h"

namespace sharpi {

/// Hidden rows that may wait for the block outside of a prompt's chunk: with more, they are read
/// before the next pass.
inline constexpr uint32_t kMtpWaiting = kMaxDraft + 1;

/// Ok where the file has such a block, and `device` can compute it (null = there is none).
/// kUnsupported says why not.
Status check_mtp(const ModelSpec& spec, const TierSizer* device);

/// What the tier is asked for: spec, placement, shapes. Pre: check_mtp().
Plan make_mtp_plan(const Plan& whole, const SessionShape& session);
/// A row of that plan as one of the whole: it says whose it is.
MemoryRow mtp_row(MemoryRow row, const ModelSpec& spec);

/// Hidden rows that wait at most, when a pass of n_chunk rows has left its own.
uint32_t mtp_queue_rows(uint32_t n_chunk);
/// Those, those of checkpoints, the block's own, and the list that a bounded session drops rows by.
uint64_t mtp_queue_bytes(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk);

/// Everything that a model, and a session, takes for the block besides weights in host memory;
/// nothing if the session has no such drafter.
std::vector<MemoryRow> mtp_model_rows(const std::vector<const TierSizer*>& sizers,
                                      const Plan& whole, const SessionShape& session);
std::vector<MemoryRow> mtp_session_rows(const std::vector<const TierSizer*>& sizers,
                                        const Plan& whole, const SessionShape& session);

}  // namespace sharpi
