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
/// The order at the rates of any usual machine: routed experts, then FFN blocks, then whole layers.
inline constexpr GiveOrder kUsualOrder{Give::kExperts, Give::kFfn, Give::kLayers};

/// What moving all blocks of a kind to the host costs: seconds that a token at the end of the
/// context loses, for each byte of device memory that is freed. The token reads those blocks at the
/// host's rate instead of the device's, and its hidden row crosses the link for them. Whole layers
/// take their KV rows along, which are stored as `tail` there, and those of their blocks that are
/// still on the device: `given` has a bit for each kind that has left before.
double give_cost(const ModelSpec& spec, const SessionShape& session, const KvDtypePair& tail,
                 const Rates& rates, Give kind, uint32_t given);

/// The cheapest kind first, then the cheapest one once that has left, and so on. Kinds of equal
/// cost are in the usual order, which is also the answer where a rate is not known.
GiveOrder give_order(const ModelSpec& spec, const SessionShape& session, const KvDtypePair& tail,
                     const Rates& rates);

}  // namespace sharpi
