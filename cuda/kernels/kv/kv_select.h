// SPDX-License-Identifier: MIT
// Choosing rows for compaction where their scores are: what kv/policy.h says, list by list (one per
// KV head of a layer). Sums, products and their order are those of policy.cc, except the mean of
// `defensive`, which is summed in parts. All launchers check their arguments and allocate nothing.
// Thread rule: pure functions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "kv/policy.h"

namespace sharpi::cuda {

/// Positions of a layer's rows: slots below n_compacted in lists, later ones follow on.
struct RowPositions {
  const uint32_t* lists = nullptr;  // device; may be null when n_compacted is 0
  uint32_t stride = 0;              // from one KV head's list to the next; 0 = all agree
  uint32_t n_compacted = 0, tail_position = 0;
};

/// Terms of one layer, [kv heads][n_slots].
struct HeldTerms {
  float* terms = nullptr;
  uint32_t n_heads = 0, n_slots = 0;
};

/// shared[position] = max(shared[position], term) for every row. Terms are not negative.
Status launch_share_hits(const HeldTerms& t, const RowPositions& at, float* shared,
                         cudaStream_t stream);
/// term = max(term, shared[position]) for every row.
Status launch_take_hits(const HeldTerms& t, const RowPositions& at, const float* shared,
                        cudaStream_t stream);

/// term = (scale * sum + kValueFloor) * norm, or max(top, mean of scale * sum over the head's rows)
/// where `norms` is null.
struct JoinParams {
  HeldTerms out;
  const float *sum = nullptr, *top = nullptr, *norms = nullptr;
  float scale = 1.0f;
};
Status launch_join_terms(const JoinParams& p, cudaStream_t stream);

/// How terms become scores: averages over neighbours, or a hit marks what follows it.
enum class Smooth : uint8_t { kPool, kSpread };

/// One KV head's rows.
struct SelectList {
  float* terms = nullptr;    // [n_slots]; afterwards the first `kept` hold the list of kept slots
  uint32_t* keys = nullptr;  // [n_slots] scratch
  float scale = 1.0f;        // of the terms
  uint32_t n_slots = 0;
  KeepParts parts{};
};
/// `lists` in device memory.
struct SelectParams {
  const SelectList* lists = nullptr;
  uint32_t n_lists = 0;
  Smooth smooth = Smooth::kSpread;
  uint32_t reach = 12;  // rows that a hit marks, or the pool's width
};
Status launch_select(const SelectParams& p, cudaStream_t stream);

}  // namespace sharpi::cuda
