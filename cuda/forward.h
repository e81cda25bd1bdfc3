// SPDX-License-Identifier: MIT
// The forward pass of the CUDA tier: a segment's operations as a list of launches, the loop over
// it, and the launches of the ends and of products. Thread rule: as the pass; what was counted is
// atomic.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "cuda/ffn_launches.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/loaded_model.h"
#include "cuda/mixer_launches.h"
#include "cuda/step_binding.h"
#include "device/launches.h"

namespace sharpi::cuda {

class Forward {
 public:
  explicit Forward(const LoadedModel& model) : m_(model), mixers_(model), ffn_(model) {}
  Status run(const Segment& segment, Pass& p) const;
  /// TierModel::step_text().
  std::vector<std::string> step_text(const Segment& segment) const;
  /// Whether steps of few rows go in chains, in words.
  std::string chain_path() const;
  const MixerLaunches& mixers() const { return mixers_; }

 private:
  StepFacts facts(const Pass& p) const;
  Status launch(Pass& p, const Binding& at, const LaunchList& list, const Launch& l) const;
  Status embed(Pass& p) const;
  Status embed_pairs(Pass& p) const;
  Status per_layer_table(Pass& p) const;
  Status combine_per_layer(Pass& p) const;
  Status pick_head_rows(Pass& p) const;
  Status send_logits(Pass& p) const;
  Status hidden_rows(Pass& p) const;
  Status rope_tables(Pass& p) const;
  Status launch_links(Pass& p, const Binding& at, const LaunchList& list, const Launch& l) const;

  const LoadedModel& m_;
  MixerLaunches mixers_;
  FfnLaunches ffn_;
  struct ChainCounts {  // of all recordings
    std::atomic<uint32_t> launched{0}, apart{0};
  };
  mutable ChainCounts chains_of_one_, chains_of_several_;
};

}  // namespace sharpi::cuda
