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

/// Ok where the file has such a block, and all of `devices`, none of them the host, can compute it.
/// kUnsupported says why not.
Status check_mtp(const ModelSpec& spec, const std::vector<const TierSizer*>& devices);

/// The block's plan: spec, placement and shapes, as the head's tier is asked for them. How much of
/// the head it drafts with is said by the plan's own session template, whatever `session` says.
/// Pre: check_mtp().
Plan make_mtp_plan(const Plan& whole, const SessionShape& session);
/// A row of the block's plan as a row of the whole plan: its label names the block.
MemoryRow mtp_row(MemoryRow row, const ModelSpec& spec);

/// The most hidden rows that can wait, right after a pass of n_chunk rows has left its own.
uint32_t mtp_queue_rows(uint32_t n_chunk);
/// Bytes of the queue of such rows, of a row for each checkpoint, of the block's own last row, and
/// of the scratch list with which a bounded session drops its oldest rows.
uint64_t mtp_queue_bytes(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk);

/// The rows that a model and that a session take for the block besides its weights in host memory;
/// empty if the session has no such drafter.
std::vector<MemoryRow> mtp_model_rows(const std::vector<const TierSizer*>& sizers,
                                      const Plan& whole, const SessionShape& session);
std::vector<MemoryRow> mtp_session_rows(const std::vector<const TierSizer*>& sizers,
                                        const Plan& whole, const SessionShape& session);

}  // namespace sharpi
