// SPDX-License-Identifier: MIT
// Reads prompts chunk by chunk (chunked prefill) and reports progress. A chunk that was read is
// committed, so a call that is cancelled or fails keeps the chunks before. Where layers are on
// several devices, chunks that need nothing of the host between them go through a pipeline. At the
// end of a prompt it makes a checkpoint and the compaction that the template asks for. Owns the
// counts of prompt tokens and of seconds for sharpi_session_info().
// Thread rule: as Session.
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
  /// What can be refused before anything changes.
  Status begin(std::span<const int32_t> tokens, const sharpi_prefill_params& params);
  /// This process's share of a prompt that all ranks of a group read (prompter_ranks.cc): chunk by
  /// chunk from the rank before and on to the next one. Pre: begin(), on all of them.
  Status read_share(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                    uint32_t* out_committed);
  uint64_t n_read() const { return n_read_; }
  double seconds() const { return seconds_; }

 private:
  struct Reading;
  Status check(std::span<const int32_t> tokens, const sharpi_prefill_params& params) const;
  Status read_chunks(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                     uint32_t* out_committed);
  Status read_chunk(Reading* r);
  Status read_pipelined(Reading* r, size_t end);
  Status read_rows(Reading* r, bool first);
  void commit(Reading* r, size_t n);

  SessionCore& core_;
  PassRunner& runner_;
  BoundedKeeper& bounded_;
  Checkpoints& checkpoints_;
  Drafters& drafters_;
  uint64_t n_read_ = 0;
  double seconds_ = 0;
};

}  // namespace sharpi
