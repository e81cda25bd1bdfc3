// SPDX-License-Identifier: MIT
// A second, smaller model of the same vocabulary, which drafts: a plan of its own beside the
// model's, all of it on one tier, whose rows are among those of the model that it drafts for. It
// goes where the head is. On a GPU blocks of the model give way to it if need be, since a step
// reads the drafter once for every draft, and a block of the model only once; a drafter that does
// not fit even so is on the host. Thread rule: pure functions.
#pragma once

#include <memory>
#include <vector>

#include "plan/plan.h"

namespace sharpi {

/// Whether a plan, or a session of it, has such a drafter. kInvalidArgument: a drafter is asked for
/// and no file is given, or the other way round. kMismatch: the two models' tokens differ.
Status check_draft_model(const ModelSpec& spec, const ModelSpec* draft, uint32_t drafters);
bool has_draft_model(const Plan& plan, const SessionShape& session);

/// The plan of the draft model: what is asked for it, and its rows. Pre: plan.draft_spec.
std::shared_ptr<const Plan> make_draft_plan(const std::vector<const TierSizer*>& sizers,
                                            const Plan& plan, const SessionShape& session);
/// A row of the draft model's plan as a row of the whole plan: its label names the draft model.
MemoryRow draft_row(MemoryRow row, const ModelSpec& whole);
/// The draft model's rows: those of the model itself (per_session false), or of one session of this
/// shape (true); empty where there is no such drafter.
std::vector<MemoryRow> draft_rows(const std::vector<const TierSizer*>& sizers, const Plan& plan,
                                  const SessionShape& session, bool per_session);

}  // namespace sharpi
