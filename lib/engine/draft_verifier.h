// SPDX-License-Identifier: MIT
// Verifies drafts (speculative decoding): behind a pass over a token and its drafts
// (session_batch.h), finds the longest run of drafts that the sampler itself would have drawn. A
// draft is a guess of one token, so drawing from the model's own distribution and comparing is the
// exact rule of speculative sampling (arXiv 2211.17192): the draft is accepted with the probability
// that the model gives it, and a token drawn in its place has the distribution without it. The
// random numbers are those of decoding token by token, and so are the tokens. A step without drafts
// is the same with one token. Owns the counts of tokens read so and of seconds, for
// sharpi_session_info().
// Thread rule: as Session. Nothing allocates.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/drafters.h"
#include "engine/pass_runner.h"
#include "engine/session_core.h"
#include "engine/token_drawer.h"

namespace sharpi {

class DraftVerifier {
 public:
  DraftVerifier(SessionCore& core, PassRunner& runner, TokenDrawer& drawer, Drafters& drafters)
      : core_(core), runner_(runner), drawer_(drawer), drafters_(drafters) {}
  /// That so many drafts were priced, and what their draws take.
  Status check(std::span<const int32_t> tokens, const sharpi_sample_params& params) const;
  /// The tokens that one pass may read. Pre: make_room(1).
  std::span<const int32_t> fitting(std::span<const int32_t> tokens) const;
  /// After a pass over all of them that began at `start`: draws behind each token, and commits
  /// those that were right.
  Status settle(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                std::chrono::steady_clock::time_point start, uint32_t* out_n);

  uint64_t n_read() const { return n_read_; }
  double seconds() const { return seconds_; }

 private:
  Status draw_behind(const sharpi_sample_params& params, int32_t* out);
  Status accept(std::span<const int32_t> tokens, const sharpi_sample_params& params,
                uint32_t* out_n);

  SessionCore& core_;
  PassRunner& runner_;
  TokenDrawer& drawer_;
  Drafters& drafters_;
  uint64_t n_read_ = 0;
  double seconds_ = 0;
};

}  // namespace sharpi
