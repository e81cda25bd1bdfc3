// SPDX-License-Identifier: MIT
// From the hidden rows of texts to what a call wants of them: rows, pooled vectors, or scores.
// Thread rule: one call at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/text_reader.h"

namespace sharpi {

/// What a call wants.
struct PoolRequest {
  Pooling pooling = Pooling::kUnsaid;  // kRank: scores
  uint32_t n_dims = 0;                 // of a vector or row; all of them where it is the width
  bool normalize = false;              // length 1; of scores: as probabilities
};

/// Rows of the output matrix for "yes" and "no", for models without a score head; empty = none.
struct LabelRows {
  std::vector<float> yes, no;
  explicit operator bool() const { return !yes.empty(); }
};

class Pooler final : public RowSink {
 public:
  using Progress = std::function<Status(uint32_t n_rows)>;
  /// `memory`: pooler_floats() of them, which outlive it, as everything else here does.
  Pooler(const Model& model, const LabelRows& labels, float* memory, std::span<const Text> texts,
         const PoolRequest& request, float* out, Progress progress);
  void take(uint32_t text, uint32_t slot, uint32_t first, uint32_t n, const float* rows) override;
  Status end_pass(uint32_t n_rows) override;

 private:
  void take_pooled(uint32_t text, uint32_t slot, uint32_t first, uint32_t n, const float* rows);
  Status project(uint32_t n, const float** vectors, uint64_t* width);
  Status score(uint32_t n);
  Status scores_of_head(uint32_t n, uint64_t labels, float* out);
  void write(uint32_t text, const float* vector) const;
  float* slot(uint32_t i) const { return memory_ + i * width_; }
  float* area(uint32_t i) const;

  const Model& model_;
  const ModelSpec& spec_;
  const LabelRows& labels_;
  float* const memory_;
  const std::span<const Text> texts_;
  const PoolRequest request_;
  float* const out_;
  const Progress progress_;
  const uint64_t width_;              // of a row
  std::vector<uint64_t> first_rows_;  // of each text in the output, for kNone
  struct Done {
    uint32_t text, slot;
  };
  std::vector<Done> done_;  // by the pass in hand
};

/// Floats of a pooler's memory.
uint64_t pooler_floats(const ModelSpec& spec);

}  // namespace sharpi
