// SPDX-License-Identifier: MIT
// The launches of a pass: of the ends and of products here, of mixers and FFNs in classes of their
// own. Thread rule: as the pass.
#pragma once

#include "cuda/ffn_launches.h"
#include "cuda/mixer_launches.h"
#include "cuda/settings.h"
#include "cuda/step_binding.h"

namespace sharpi::cuda {

class PassLaunches {
 public:
  PassLaunches(const LoadedModel& model, const Settings& settings)
      : m_(model), s_(settings), mixers_(model, settings), ffn_(model, settings) {}
  /// PassKernels::launch().
  Status make(Pass& p, const LaunchList& list, const Launch& l) const;

 private:
  Status embed(Pass& p) const;
  Status embed_pairs(Pass& p) const;
  Status per_layer_table(Pass& p) const;
  Status combine_per_layer(Pass& p) const;
  Status pick_head_rows(Pass& p) const;
  Status send_logits(Pass& p) const;
  Status hidden_rows(Pass& p) const;
  Status heads(Pass& p, const Launch& l) const;
  Status activation(Pass& p, uint32_t layer) const;
  Status adapters(Pass& p, const RowLink& link) const;
  Status rope_tables(Pass& p) const;
  Status launch_links(Pass& p, const Binding& at, const LaunchList& list, const Launch& l) const;

  const LoadedModel& m_;
  const Settings& s_;
  MixerLaunches mixers_;
  FfnLaunches ffn_;
};

}  // namespace sharpi::cuda
