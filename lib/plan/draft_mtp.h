// SPDX-License-Identifier: MIT
// The block for multi-token prediction as a plan of its own beside the model's: a model of one
// layer on the host, whose weights are among the rows of the model that it belongs to.
// Thread rule: pure functions.
#pragma once

#include <vector>

#include "base/limits.h"
#include "plan/plan.h"

namespace sharpi {

/// Hidden rows that may wait for the block outside of a prompt's chunk: with more, they are read
/// before the next pass.
inline constexpr uint32_t kMtpWaiting = kMaxDraft + 1;

/// Ok where the file has such a block, and where the placement can feed it, which takes the head on
/// the CPU. kUnsupported says why not.
Status check_mtp(const ModelSpec& spec);
Status check_mtp(const ModelSpec& spec, const Placement& placement);

/// The block's plan: spec, placement and shapes that the host's tier is asked for. Pre:
/// check_mtp().
Plan make_mtp_plan(const ModelSpec& spec, const ModelShape& model, const SessionShape& session);
/// A row of the block's plan as a row of the whole plan: its label names the block.
MemoryRow mtp_row(MemoryRow row, const ModelSpec& spec);

/// The most hidden rows that can wait, right after a pass of n_chunk rows has left its own.
uint32_t mtp_queue_rows(uint32_t n_chunk);
/// Bytes of those rows, of the rows that checkpoints keep, of the block's own row, and of the list
/// by which a bounded session drops rows.
uint64_t mtp_queue_bytes(const ModelSpec& spec, const SessionShape& session, uint32_t n_chunk);

/// The rows that a model and that a session take for the block besides its weights; empty if the
/// session has no such drafter.
std::vector<MemoryRow> mtp_model_rows(const std::vector<const TierSizer*>& sizers,
                                      const ModelSpec& spec, const ModelShape& model,
                                      const SessionShape& session);
std::vector<MemoryRow> mtp_session_rows(const std::vector<const TierSizer*>& sizers,
                                        const ModelSpec& spec, const ModelShape& model,
                                        const SessionShape& session);

}  // namespace sharpi
