// SPDX-License-Identifier: MIT
// Choosing rows for compaction where their scores are: what kv/policy.h says, list by list (one per
// KV head of a layer). Sums, products and their order are those of policy.cc, except the mean of
// `defensive`, which is summed in parts. All launchers check their arguments and allocate nothing.
// Thread rule: pure functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "device/kernel_params.h"
#include "kv/policy.h"

namespace sharpi::cuda {

using device::HeldTerms;
using device::JoinParams;
using device::kNoPosition;
using device::RowPositions;
using device::SelectList;
using device::SelectParams;
using device::Smooth;

/// shared[position] = max(shared[position], term) for every row. Terms are not negative. Slots
/// without a position are left out, here and below.
Status launch_share_hits(const HeldTerms& t, const RowPositions& at, float* shared,
                         cudaStream_t stream);
/// term = max(term, shared[position]) for every row.
Status launch_take_hits(const HeldTerms& t, const RowPositions& at, const float* shared,
                        cudaStream_t stream);

Status launch_join_terms(const JoinParams& p, cudaStream_t stream);

Status launch_select(const SelectParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
