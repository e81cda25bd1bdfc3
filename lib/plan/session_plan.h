// SPDX-License-Identifier: MIT
// A session of a plan: its parameters resolved to a shape and checked against what was priced, and
// the memory that the engine itself takes for it. Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "kv/kv_layout.h"
#include "model/model_spec.h"
#include "plan/block_placement.h"
#include "plan/plan.h"
#include "plan/shapes.h"
#include "plan/tier_sizer.h"
#include "sharpi.h"

namespace sharpi {

/// KV dtypes of every layer, and whether `auto` decided any of them.
struct SessionDtypes {
  std::vector<KvDtypePair> per_layer;
  bool any_auto = false;
};
/// Explicit parameter over environment over `automatic`. Layers on the CPU beside a GPU with
/// attention layers are the tail: f32 unless their own parameter says otherwise.
Result<SessionDtypes> resolve_dtypes(const ModelSpec& spec, const Placement& placement,
                                     const sharpi_session_params& params,
                                     const PlanEnvironment& environment, KvDtype automatic);
/// All of a template but dtypes; n_ctx may stay SHARPI_UNSET. Pre: each field is in its range.
Result<SessionShape> resolve_session_shape(const ModelSpec& spec,
                                           const sharpi_session_params& params,
                                           const PlanEnvironment& environment);
/// A session of a loaded model: its template against what the plan priced.
Result<SessionShape> resolve_session(const ModelSpec& spec, const Placement& placement,
                                     const SessionShape& priced,
                                     const sharpi_session_params& params,
                                     const PlanEnvironment& environment);
/// kUnsupported where a session of this shape has an archive of rows that no head has for itself.
/// Pre: the codecs are resolved.
Status check_archive(const ModelSpec& spec, const SessionShape& session);
/// kInvalidArgument where sinks and recency, which are kept without a score, may be more rows than
/// the budget that BUDGET_AUTO leads to.
Status check_automatic_budget(const SessionShape& s);
/// Bytes that the engine itself takes for a session, by what they are for; 0 = none.
struct EngineBytes {
  uint64_t history = 0, sampler = 0, checkpoint_logits = 0, compaction_tables = 0, ngram_index = 0,
           mtp_queue = 0, key_shift = 0, archive = 0;
};
std::vector<MemoryRow> engine_rows(const EngineBytes& bytes);
/// Chains of the n-gram drafter's index, a power of two. Beside their heads it has an entry for
/// each token.
inline uint64_t ngram_buckets(uint32_t n_ctx) {
  return std::bit_ceil(std::max<uint64_t>(64, n_ctx));
}
uint64_t ngram_index_bytes(uint32_t n_ctx);
/// The rows of what the engine takes for a session (token history, sampler, tables). n_chunk is the
/// plan's: a bounded session holds as many rows beside its budget.
std::vector<MemoryRow> engine_session_rows(const ModelSpec& spec, const Placement& placement,
                                           const SessionShape& session, uint32_t n_chunk);
/// The engine's tables of a session that may compact: row scores, keep lists and kept positions for
/// every KV head, and what selecting one list needs.
uint64_t compaction_table_bytes(const ModelSpec& spec, const SessionShape& session,
                                uint32_t n_chunk);
/// kDoesNotFit naming the row that is short when `wanted` exceeds what `priced` took.
Status check_within(const std::vector<MemoryRow>& priced, const std::vector<MemoryRow>& wanted);

}  // namespace sharpi
