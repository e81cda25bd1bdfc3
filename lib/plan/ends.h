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
  double said = 0;  // sharpi_plan_summary's figure, in which every routed expert is read on the CPU
  double served =
      0;  // the same if expert slots served their share of tokens, all experts being used alike
};
TokenCost token_cost(const Plan& plan);

/// Whether the choice `ends` at that cost is to be preferred to the choice found so far, which
/// keeps more of embedding and head on the device.
bool is_better(Ends ends, const TokenCost& cost, const TokenCost& found);

}  // namespace sharpi
