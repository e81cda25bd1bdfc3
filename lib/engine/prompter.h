// SPDX-License-Identifier: MIT
// Reads prompts: chunk by chunk, with progress, to whole committed chunks; then a checkpoint and
// the compaction that the template asks for. Owns how many tokens were read so, and how long it
// took. Thread rule: as Session.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/bounded_keeper.h"
#include "engine/checkpoints.h"
#include "engine/drafters.h"
#include "engine/pass_runner.h"
#include "engine/session_core.h"

namespace sharpi {

class Prompter {
 public:
  Prompter(SessionCore& core, PassRunner& runner, BoundedKeeper& bounded, Checkpoints& checkpoints,
           Drafters& drafters)
      : core_(core),
        runner_(runner),
        bounded_(bounded),
        checkpoints_(checkpoints),
        drafters_(drafters) {}
  /// sharpi_session_prefill(). *out_committed also of a call that ended early: whole chunks.
  Status read(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
              uint32_t* out_committed);
  uint64_t n_read() const { return n_read_; }
  double seconds() const { return seconds_; }

 private:
  Status check(std::span<const int32_t> tokens, const sharpi_prefill_params& params) const;
  Status read_chunks(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                     uint32_t* out_committed);

  SessionCore& core_;
  PassRunner& runner_;
  BoundedKeeper& bounded_;
  Checkpoints& checkpoints_;
  Drafters& drafters_;
  uint64_t n_read_ = 0;
  double seconds_ = 0;
};

}  // namespace sharpi
