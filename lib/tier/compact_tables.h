// SPDX-License-Identifier: MIT
// A session's tables for a compaction in host memory: terms, keep lists, and what choosing needs.
// Taken once and priced by the plan (compaction_table_bytes), because compaction is called when
// memory is short. Thread rule: one owner (the session).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model_spec.h"

namespace sharpi {

/// The replay scores of one layer's rows, [n_heads][stride]; null where nobody asked for them.
struct OwnReplay {
  const float* scores = nullptr;
  uint64_t stride = 0;
};

class CompactTables {
 public:
  /// For rows up to `capacity` in every full-attention layer that owns its KV, at positions below
  /// n_ctx. Throws std::bad_alloc; then nothing was taken.
  void reserve(const ModelSpec& spec, uint32_t capacity, uint32_t n_ctx, bool replay);
  void release() noexcept { *this = CompactTables(); }
  bool is_reserved() const { return !order_.empty(); }
  uint64_t bytes() const;

  uint32_t stride() const { return capacity_; }
  /// KV heads of a layer whose rows can be chosen, 0 for other layers.
  uint32_t n_heads(uint32_t layer) const { return n_heads_[layer]; }
  /// Keep lists of a layer: head h at h * stride().
  uint32_t* keep(uint32_t layer) { return keep_.data() + first_[layer]; }
  /// How many rows each head of a layer keeps, where they differ: [n_heads].
  uint32_t* counts(uint32_t layer) { return counts_.data() + first_[layer] / capacity_; }
  /// Room for [n_heads][rows] terms of a layer (kv/policy.h).
  float* terms(uint32_t layer) { return terms_.data() + first_[layer]; }
  /// [n_ctx] each, by position. `replay`: with replay scores, otherwise empty.
  std::span<float> shared() { return shared_; }
  std::span<float> replay() { return replay_; }
  /// Those of a layer whose terms are held in host memory.
  OwnReplay& own_replay(uint32_t layer) { return own_replay_[layer]; }
  /// [capacity] each.
  float* row() { return rows_.data(); }
  float* scratch() { return rows_.data() + capacity_; }
  uint32_t* order() { return order_.data(); }

 private:
  uint32_t capacity_ = 0;
  std::vector<uint64_t> first_;    // per layer
  std::vector<uint32_t> n_heads_;  // per layer
  std::vector<OwnReplay> own_replay_;
  std::vector<uint32_t> keep_, order_, counts_;
  std::vector<float> terms_, replay_, rows_, shared_;
};

}  // namespace sharpi
