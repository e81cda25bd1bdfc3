// SPDX-License-Identifier: MIT
// The calls of a session whose model's layers are spread over the processes of a group: all ranks
// make them, agree before anything changes, and agree about how they ended. The same parts do the
// work as in one process; steps are those of SessionBatch. Owns the session's number. Thread rule:
// as Session.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/checkpoints.h"
#include "engine/prompter.h"
#include "engine/rank_link.h"
#include "engine/session_core.h"
#include "engine/token_drawer.h"

namespace sharpi {

class RankCalls {
 public:
  RankCalls(SessionCore& core, TokenDrawer& drawer, Checkpoints& checkpoints, Prompter& prompter)
      : core_(core), drawer_(drawer), checkpoints_(checkpoints), prompter_(prompter) {}
  /// Whether the session's calls are these. All others have nothing to do here.
  bool are_needed() const { return core_.model->ranks() != nullptr; }
  /// Of what a group of processes cannot do: kUnsupported.
  Status refuse(const char* what) const;
  void set_number(uint32_t n) { number_ = n; }
  /// The session is the n-th of its model.
  uint32_t number() const { return number_; }
  /// What the draw of a step may take.
  static Status check_draw(const sharpi_sample_params& params);

  Status prefill(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                 uint32_t* out_committed);
  Status sample(const sharpi_sample_params& params, int32_t* out);
  Status truncate(uint32_t n_tokens);
  /// Where the logits are not: kUnsupported.
  Status check_has_logits() const;

 private:
  RankVerdict agree(RankCall call, uint64_t arguments, const Status& own, int32_t value = 0);
  Status draw(const sharpi_sample_params& params, int32_t* out);
  void go_back(uint32_t n_tokens);

  SessionCore& core_;
  TokenDrawer& drawer_;
  Checkpoints& checkpoints_;
  Prompter& prompter_;
  uint32_t number_ = 0;
};

}  // namespace sharpi
