// SPDX-License-Identifier: MIT
#include "plan/ends.h"

#include <algorithm>

#include "plan/drafter_plan.h"
#include "plan/layer_bytes.h"

namespace sharpi {
namespace {

// What a head on the host must save a token, as a share. Its bytes cost there what those of an FFN
// block cost, so choices often differ only by how well blocks fill the budget, which rates do not
// tell apart; and logits on the device are drawn from there.
constexpr double kClearly = 0.97;

/// Bytes that a token reads of experts on the host, if slots hold as many of them as there are.
double bytes_from_slots(const ModelSpec& spec, const Placement& placement) {
  const uint64_t parted = placement.n_parted_experts(spec);
  if (parted == 0) return 0;
  uint64_t read = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (placement.parts_experts(spec, l)) read += layer_bytes(spec, l).experts_read;
  }
  return static_cast<double>(read) * placement.n_expert_slots / static_cast<double>(parted);
}

}  // namespace

std::vector<Ends> usable_ends(const PlacementLadder& ladder, const Plan& plan) {
  std::vector<Ends> ends = ladder.ends();
  const bool mtp = (plan.session.drafters & SHARPI_DRAFT_MTP) != 0;
  // Drafters are where the head is, and what that is worth to them is not in the cost of a token.
  if ((mtp || has_draft_model(plan, plan.session)) && ends.size() > 1) {
    ends.erase(std::remove(ends.begin(), ends.end(), Ends::kNone), ends.end());
  }
  return ends;
}

TokenCost token_cost(const Plan& plan) {
  const double slots = bytes_from_slots(*plan.spec, plan.placement);
  const Rates& rates = plan.rates;
  if (rates.device <= 0 || rates.host <= 0) {
    const TokenBytes bytes =
        token_bytes(*plan.spec, plan.placement, plan.session, DeviceIndex::kHost);
    const double host = static_cast<double>(bytes.weights) + static_cast<double>(bytes.rows);
    return {host, host - slots};
  }
  const double seconds = token_seconds(plan, true);
  return {seconds, seconds - slots / rates.host + slots / rates.device};
}

bool is_better(Ends ends, const TokenCost& cost, const TokenCost& found) {
  const double clearly = ends == Ends::kNone ? kClearly : 1;
  return cost.said <= found.said && cost.served < found.served * clearly;
}

}  // namespace sharpi
