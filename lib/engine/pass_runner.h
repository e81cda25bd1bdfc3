// SPDX-License-Identifier: MIT
// One session's part of a pass over the model: begin() makes room for its rows, commit() makes them
// part of the session, and after a failure the session is as it was. Also the whole pass over a
// chunk of a prompt; passes of decode steps are made by SessionBatch. Owns no state of its own but
// between begin() and commit(): before commit() nothing has changed that a later call reads. Thread
// rule: as Session. Nothing allocates.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "engine/drafters.h"
#include "engine/pipeline.h"
#include "engine/row_selector.h"
#include "engine/session_core.h"

namespace sharpi {

/// What a pass over a chunk is asked for.
struct PassRequest {
  std::span<const int32_t> tokens;  // at most a chunk of them
  uint32_t rows_to_end = 0;         // tokens of the call behind these
  uint32_t want_rows = 0;           // rows of logits that the call wants
  PassProgress* progress = nullptr;
};

class PassRunner {
 public:
  PassRunner(SessionCore& core, Drafters& drafters, RowSelector& selector)
      : core_(core), drafters_(drafters), selector_(selector) {}
  /// `rings_written`: as the submission says, of a pass that did not fail; null = nobody asks.
  Status run(const PassRequest& pass, bool* rings_written = nullptr);
  /// How many tokens passes in a pipeline may read before the host has something to do between two
  /// passes; `n_chunk`: tokens of each but the last. 0 = the model or the session has no pipeline.
  uint64_t room_of_pipeline(uint32_t n_chunk) const;
  /// Gives the pass to the pipeline, behind those that are under way there. `rings_written`: as the
  /// submission says.
  Status start(const PassRequest& pass, Pipeline* pipeline, bool* rings_written);
  /// Waits for the oldest of them, which is then to be committed.
  Status finish(Pipeline* pipeline) { return pipeline->finish(drafters_.hidden_rows()); }
  /// Fills in the session's share of a pass: n_rows rows of the batch from rows->first_row on. All
  /// sessions of the batch make room first, because that may run the MTP block, after which its
  /// hidden rows go to another place.
  Status begin(uint32_t n_rows, SequenceRows* rows);
  /// The same of passes in a pipeline over n_rows rows, of which the first n_oldest failed.
  void failed_under_way(const Status& why, uint32_t n_oldest, uint32_t n_rows, bool rings_written);
  /// Of a pass over n_rows rows of the session, also one that others took part in.
  /// `rings_written`: as the submission says.
  void failed(const Status& why, uint32_t n_rows, bool rings_written);
  /// The tokens of the pass were read, and so many rows of logits stay readable.
  void commit(std::span<const int32_t> tokens, uint32_t n_logit_rows);
  /// The same after a drafted pass, whose right tokens the transcript has tried.
  void commit_tried(std::span<const int32_t> tokens);

 private:
  Status begin_replay(SequenceRows* rows);
  Status begin(const PassRequest& pass, SequenceRows* rows);

  SessionCore& core_;
  Drafters& drafters_;
  RowSelector& selector_;
  bool replays_ = false;  // the pass gives its rows their replay scores
  bool settles_ = false;  // the rows before it have got theirs
};

}  // namespace sharpi
