// SPDX-License-Identifier: MIT
// Plans of encoders, whose embedders stand where other models have sessions, and what an embedder
// of any model takes. Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace sharpi {

/// Texts of one pass at most.
inline constexpr uint32_t kMaxTexts = kMaxBatch;

/// kUnsupported for an encoder.
Status check_has_sessions(const ModelSpec& spec);
/// kInvalidArgument or kUnsupported for a field of the request that only sessions would read.
Status check_encoder_request(const ModelSpec& spec, const sharpi_plan_params& params);
/// The session template of an encoder, of which only n_ctx counts, and the rows of a pass: at least
/// n_ctx, since a text is read in one.
Status resolve_encoder(const ModelSpec& spec, const sharpi_plan_params& params, Plan* plan);
/// The longest vector behind the pooling.
uint64_t pooled_width(const ModelSpec& spec);
/// What an embedder takes besides sessions: hidden rows of a pass, and vectors of its texts.
std::vector<MemoryRow> embedder_rows(const ModelSpec& spec, uint32_t n_chunk);

}  // namespace sharpi
