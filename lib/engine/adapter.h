// SPDX-License-Identifier: MIT
// Adapter: a loaded adapter (LoRA) beside a model, which it keeps alive; and what a session has
// chosen of such adapters. Thread rule: an adapter is immutable; the choice is its session's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "engine/allowance.h"
#include "engine/model.h"
#include "model/adapter_file.h"
#include "tier/adapter_weights.h"

namespace sharpi {

class Adapter {
 public:
  /// Takes its memory from the model's allowance. As read_adapter(); kUnsupported where the plan
  /// has no scratch for products of adapters, kDoesNotFit where it has too little or where a budget
  /// is short.
  static Result<std::shared_ptr<const Adapter>> load(std::shared_ptr<const Model> model,
                                                     const std::string& path);
  const Model& model() const { return *model_; }
  const AdapterFile& facts() const { return file_; }
  const AdapterParts& parts() const { return parts_; }
  /// One for each device with a part.
  std::vector<MemoryRow> memory_rows() const;
  uint64_t held_bytes() const;

 private:
  explicit Adapter(std::shared_ptr<const Model> model)
      : model_(std::move(model)), share_(model_->allowance()) {}
  const std::shared_ptr<const Model> model_;
  Share share_;  // outlives what it counts
  AdapterFile file_;
  AdapterParts parts_;
};

/// What the caller chooses.
struct AdapterChoice {
  std::shared_ptr<const Adapter> adapter;
  float scale = 1.0f;
};

/// The adapters of a session, which it keeps alive.
class ChosenAdapters {
 public:
  /// kInvalidArgument: too many, one twice, one of another model, a scale that is no finite number.
  /// Those with a scale of 0 are left out. Nothing changes unless it is ok. May throw
  /// std::bad_alloc.
  Status choose(const Model& model, std::span<const AdapterChoice> choices);
  std::span<const AdapterUse> uses() const { return uses_; }
  /// Tells choices apart: contents and scales, in their order; 0 = none.
  uint64_t id() const { return id_; }
  /// kMismatch: a session with those of `saved` was saved, and these are others.
  Status check_saved(uint64_t saved) const;

 private:
  std::vector<std::shared_ptr<const Adapter>> adapters_;
  std::vector<AdapterUse> uses_;  // parallel
  uint64_t id_ = 0;
};

}  // namespace sharpi
