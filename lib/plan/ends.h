// SPDX-License-Identifier: MIT
// Whether the embedding and the head stay on the device while other blocks give way to a budget. An
// embedding table that is not the head's too gives way before any block: a token looks one row of
// it up, while a block on the host is read whole. The head is read whole as well, so it stays,
// unless a token is clearly faster without it there. Thread rule: pure functions.
#pragma once

#include <vector>

#include "plan/placement.h"
#include "plan/plan.h"

namespace sharpi {

/// The choices of a ladder that the drafters of a plan can work with.
std::vector<Ends> usable_ends(const PlacementLadder& ladder, const Plan& plan);

/// What a token at the end of the context costs on a placement: seconds, or bytes that it reads of
/// the host's memory where a rate is not known.
struct TokenCost {
  /// As sharpi_plan_summary has it: as if no expert slot were ever hit.
  double said = 0;
  /// As if all experts were used equally often, so that slots are hit by their share of them.
  double served = 0;
};
TokenCost token_cost(const Plan& plan);

/// Whether to prefer `ends`, at this cost, to the best choice found so far, which has more on the
/// device.
bool is_better(Ends ends, const TokenCost& cost, const TokenCost& found);

}  // namespace sharpi
