// SPDX-License-Identifier: MIT
// What a request comes to once every default is resolved: the shape of a session, and that of the
// model's calls. Planner, tiers and engine size everything by these two.
// Thread rule: plain values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/limits.h"
#include "kv/kv_layout.h"
#include "sharpi.h"

namespace sharpi {

/// The session template with everything resolved.
struct SessionShape {
  uint32_t n_ctx = 0;
  std::vector<KvDtypePair> dtypes;  // per layer
  uint32_t rewind = kDefaultRewind, n_checkpoints = 0;
  uint32_t kv_budget = 0, prompt_budget = 0, capture_window = 0;
  uint32_t recency = SHARPI_UNSET, sinks = SHARPI_UNSET;  // UNSET = what the budget suggests
  sharpi_policy policy = SHARPI_POLICY_AUTO;
  bool lookahead = true, per_layer_budgets = false;
  std::vector<int32_t> probe;
  uint32_t replay_every = 0;  // queries from one that gives replay scores to the next; 0 = none
  uint32_t archive_rows = 0;  // evicted rows that a KV head keeps in host memory; 0 = none
  uint32_t n_draft = 0, drafters = 0;   // most drafts of a pass; SHARPI_DRAFT_*: its own drafters
  uint32_t n_draft_vocab = 0;           // MTP drafts tokens with ids below it; 0 = all
  uint32_t first_slots = SHARPI_UNSET;  // of capacity(), committed at first; a fork needs no more
  /// Slots of full-attention layers committed at creation.
  uint32_t capacity(uint32_t n_chunk) const;
};

/// For how many queries such a session has observer rows (of a look-ahead or a probe) and scratch
/// for scoring; 0 = it has neither.
uint32_t score_queries(const SessionShape& session);

/// Inputs of a plan that do not belong to a session.
struct ModelShape {
  bool exact = false, deterministic = false;
  uint32_t n_chunk = 512, max_batch = kDefaultMaxBatch, max_logit_rows = kDefaultMaxLogitRows;
  uint32_t max_concurrent = 1, n_sessions = 1;
  /// Rows of a call from which weights stream; 0 = measured at load, SHARPI_UNSET = never.
  uint32_t stream_rows = SHARPI_UNSET;
  bool copy_weights = false;  // those in host memory are copies, not pages of the file
  uint32_t adapter_rank = 0;  // the most that calls have scratch for; 0 = no adapters
  /// Rows of a call that may want logits.
  uint32_t head_rows() const { return max_logit_rows > max_batch ? max_logit_rows : max_batch; }
  uint32_t max_rows() const { return n_chunk > max_batch ? n_chunk : max_batch; }
};

}  // namespace sharpi
