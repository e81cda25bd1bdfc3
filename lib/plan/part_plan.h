// SPDX-License-Identifier: MIT
// Layers over the processes of a group: which rank has which, from the file and the request alone,
// so that every rank comes to the same; and what a group cannot do, refused by name. A rank's plan
// is then that of a model with its layers alone. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/model_spec.h"
#include "plan/shapes.h"
#include "plan/tier_sizer.h"

namespace sharpi {

/// The layers of rank `part.rank` of `part.n_ranks`. `layers`: of each rank, the first one's first;
/// empty = by the bytes that a token reads of them and of the head. kInvalidArgument: counts that
/// are not the model's; kUnsupported: a split that parts layers which share KV rows, a model that
/// no group can have.
Result<std::shared_ptr<const ModelSpec>> make_part(const ModelSpec& spec, const ModelPart& part,
                                                   std::span<const uint32_t> layers);

/// kUnsupported where a request of a part asks for what calls of several processes cannot do.
Status check_part_request(const sharpi_plan_params& params);
/// The same of a session; its context has a length.
Status check_part_session(const SessionShape& session);

/// What a rank reads for its share of a step, in bytes.
struct RankCost {
  uint64_t weights = 0;                    // for every pass
  uint64_t experts = 0, experts_read = 0;  // routed ones: all of them, and those that a token uses
  uint64_t session = 0, token = 0;         // for a session, and for each token that it holds
};
RankCost rank_cost(const ModelSpec& spec, const SessionShape& session);
/// ends[n_parts]: where parts of a batch end that hold about as many tokens each. Pre: at least a
/// session for each.
void cut_batch(std::span<const uint32_t> lengths, uint32_t n_parts, uint32_t* ends);
/// In how many parts a batch of sessions with so many tokens goes down the ranks: 1, unless ranks
/// that all read equally fast would be done a tenth sooner with more.
uint32_t parts_of_batch(std::span<const RankCost> ranks, std::span<const uint32_t> lengths);

/// What a process holds of messages to others: a header and the hidden rows of a call, and what
/// each rank says of it.
inline constexpr uint64_t kRankHeaderBytes = 64, kRankWordBytes = 320;
uint64_t rank_message_bytes(const ModelSpec& spec, const ModelShape& model);
/// The row of that; none for a whole model.
std::vector<MemoryRow> part_rows(const ModelSpec& spec, const ModelShape& model);

}  // namespace sharpi
