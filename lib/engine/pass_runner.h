// SPDX-License-Identifier: MIT
// One pass over the model for one session, and what makes it count. Owns no state of its own: until
// commit() nothing has changed that a later call reads.
// Thread rule: as Session. Nothing allocates.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/drafters.h"
#include "engine/session_core.h"

namespace sharpi {

/// What a pass is asked for.
struct PassRequest {
  std::span<const int32_t> tokens;  // at most a chunk of them
  uint32_t rows_to_end = 0;         // tokens of the call behind these
  uint32_t want_rows = 0;           // rows of logits that the call wants
  bool drafted = false;             // tokens behind the first may turn out wrong
  Meanwhile* meanwhile = nullptr;
  PassProgress* progress = nullptr;
};

class PassRunner {
 public:
  PassRunner(SessionCore& core, Drafters& drafters) : core_(core), drafters_(drafters) {}
  Status run(const PassRequest& pass);
  /// Of a pass over n_rows rows of the session, also one that others took part in.
  /// `rings_written`: as the submission says.
  void failed(const Status& why, uint32_t n_rows, bool rings_written);
  /// The tokens of the pass were read.
  void commit(std::span<const int32_t> tokens);
  /// The same after a drafted pass; the history has them already.
  void commit_drafted(std::span<const int32_t> tokens);

 private:
  SessionCore& core_;
  Drafters& drafters_;
};

}  // namespace sharpi
