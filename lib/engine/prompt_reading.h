// SPDX-License-Identifier: MIT
// A prompt that is being read, as the sources of Prompter share it. Internal to them.
// Thread rule: as Session.
#pragma once

#include <algorithm>
#include <chrono>
#include <span>

#include "engine/prompter.h"
#include "tier/pass_progress.h"

namespace sharpi {

/// What a prompt's callback hears, and whether it has asked to stop.
class PromptProgress final : public PassProgress {
 public:
  PromptProgress(const sharpi_prefill_params& params, uint32_t n_layers, uint64_t total)
      : fn_(params.progress), user_data_(params.user_data), n_layers_(n_layers), total_(total) {}
  PassProgress* hook() { return fn_ == nullptr ? nullptr : this; }
  void begin_chunk(uint64_t done, uint64_t n) { done_ = done, n_ = n; }
  /// A chunk counts by the share of its layers; of the last one the chunk itself tells.
  bool layer_done(uint32_t layer) override {
    if (stopped_ || layer + 1 == n_layers_) return !stopped_;
    return report(done_ + n_ * (layer + 1) / n_layers_);
  }
  bool report(uint64_t done) {
    if (fn_ == nullptr || stopped_) return !stopped_;
    stopped_ = fn_(user_data_, SHARPI_PHASE_PREFILL, done, total_) != 0;
    return !stopped_;
  }
  bool stopped() const { return stopped_; }
  Status cancelled(uint64_t committed) const {
    return Status::error(
        Code::kCancelled, "the progress callback cancelled the call after %llu of %llu tokens",
        static_cast<unsigned long long>(committed), static_cast<unsigned long long>(total_));
  }

 private:
  const sharpi_progress_fn fn_;
  void* const user_data_;
  const uint32_t n_layers_;
  const uint64_t total_;
  uint64_t done_ = 0, n_ = 0;
  bool stopped_ = false;
};

/// A prompt on its way.
struct Prompter::Reading {
  std::span<const int32_t> tokens;
  const sharpi_prefill_params& params;
  uint32_t n_chunk;
  PromptProgress progress;
  uint32_t* out_committed;
  size_t done = 0;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  size_t chunk_at(size_t at) const { return std::min<size_t>(n_chunk, tokens.size() - at); }
  PassRequest pass_at(size_t at) const {
    PassRequest pass;
    pass.tokens = tokens.subspan(at, chunk_at(at));
    pass.rows_to_end = static_cast<uint32_t>(tokens.size() - at - pass.tokens.size());
    pass.want_rows = params.n_logit_rows;
    return pass;
  }
  /// Tokens of the prompt that go through a pipeline with room for `room` of them, up to there:
  /// chunks that are read as they would be alone, and more than one.
  size_t end_of_pipeline(uint64_t room, const Model& model) const {
    size_t end = done;
    while (end < tokens.size() && end - done + chunk_at(end) <= room &&
           model.passes_under_way(static_cast<uint32_t>(chunk_at(end))) > 1)
      end += chunk_at(end);
    return end - done > chunk_at(done) ? end : done;
  }
};

}  // namespace sharpi
