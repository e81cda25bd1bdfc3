// SPDX-License-Identifier: MIT
// What gives way first when a model does not fit a device: kinds of blocks, by the time that a
// token loses for every byte of device memory that one of them frees. Thread rule: pure functions.
#pragma once

#include <array>
#include <cstdint>

#include "plan/plan.h"

namespace sharpi {

/// The embedding and the head are none of them: which of these stay is chosen by plan/ends.h.
enum class Give : uint8_t { kExperts, kFfn, kLayers };
using GiveOrder = std::array<Give, 3>;
/// Routed experts, FFN blocks, whole layers: what costs say at the rates of any usual machine.
inline constexpr GiveOrder kUsualOrder{Give::kExperts, Give::kFfn, Give::kLayers};

/// Seconds that a token at the end of the context loses for each byte of device memory freed by
/// moving all blocks of a kind to the host: what it reads of them at the host's rate instead of the
/// device's, and the hidden rows that cross the link for it, over what they take. Whole layers
/// count with their KV rows, and with what is left in them: `given` went before (bit per kind).
/// Rows on the host are of `tail`.
double give_cost(const ModelSpec& spec, const SessionShape& session, const KvDtypePair& tail,
                 const Rates& rates, Give kind, uint32_t given);

/// The cheapest kind first, each with those before it given away; kinds of equal cost in the usual
/// order, which is also the answer where a rate is not known.
GiveOrder give_order(const ModelSpec& spec, const SessionShape& session, const KvDtypePair& tail,
                     const Rates& rates);

}  // namespace sharpi
