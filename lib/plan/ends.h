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
  double said = 0;    // as the summary of the plan has it
  double served = 0;  // less what expert slots save it, were all experts used alike
};
TokenCost token_cost(const Plan& plan);

/// Whether `ends` at that cost go before what was found, which has more of them on the device.
bool is_better(Ends ends, const TokenCost& cost, const TokenCost& found);

}  // namespace sharpi
