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

/// What a process holds of messages to others: a header and the hidden rows of a call, and what
/// each rank says of it.
inline constexpr uint64_t kRankHeaderBytes = 64, kRankWordBytes = 256;
uint64_t rank_message_bytes(const ModelSpec& spec, const ModelShape& model);
/// The row of that; none for a whole model.
std::vector<MemoryRow> part_rows(const ModelSpec& spec, const ModelShape& model);

}  // namespace sharpi
