// SPDX-License-Identifier: MIT
// The session's own drafters for speculative decoding: n-grams of its text, the model's block for
// multi-token prediction, a smaller model. Owns them, how many drafts each offers at a time, and
// the counts of accepted drafts. Every change of the session's text (commit, truncate, context
// shift) is reported here and passed on to the drafters that need to know.
// Thread rule: as Session; cancel() and resume() from anywhere.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/limits.h"
#include "base/status.h"
#include "engine/draft_model.h"
#include "engine/draft_mtp.h"
#include "engine/draft_ngram.h"
#include "engine/draft_pace.h"
#include "engine/row_memory.h"
#include "engine/session_core.h"
#include "plan/session_plan.h"

namespace sharpi {

/// A pass over rows of several sessions.
struct TimedPass {
  uint32_t n_sessions = 0, n_rows = 0;
  double seconds = 0;
};

class Drafters {
 public:
  explicit Drafters(SessionCore& core) : core_(core) {}
  /// Those that the template names. May throw std::bad_alloc.
  Status create();
  /// Null where the session has none.
  MtpDrafter* mtp() const { return mtp_.get(); }
  ModelDrafter* model() const { return draft_model_.get(); }

  /// Drafts behind `next`, which is drawn but not read, to drafts[most]; `scratch`: [n_vocab]. None
  /// where masks are set: they are the first token's alone.
  Status propose(int32_t next, const sharpi_sample_params& params, uint32_t most, float* scratch,
                 int32_t* drafts, Drafted* out);
  /// After a step with these drafts that read so many tokens, in so many seconds besides those in
  /// which the drafter caught up. Steps without drafts are the times that all drafters are compared
  /// with.
  void learn(const Drafted& drafts, uint32_t n_read, double seconds) {
    learn(drafts, n_read, seconds, 1);
  }
  /// The same after a step in a pass that several sessions shared, behind own_seconds in which this
  /// session's drafters worked.
  void learn_shared(const Drafted& drafts, uint32_t n_read, const TimedPass& pass,
                    double own_seconds);
  /// A pass over the host's or a drafter's drafts, in so many seconds with its draws.
  void count(uint32_t n_drafts, uint32_t n_accepted, double seconds);
  const sharpi_draft_stats& stats() const { return draft_stats_; }
  std::span<const DraftPlace> places() const { return {draft_places_.data(), core_.shape.n_draft}; }

  /// Asks a pass to leave its hidden rows in the MTP block's queue, and makes room there for a
  /// chunk.
  Status take_hidden(SequenceRows* rows);
  /// Of the oldest pass in a pipeline, whose take_hidden() was earlier: where its rows go now; null
  /// where nobody wants them. A block that is behind, as catch_up() failed, begins anew with them.
  float* hidden_rows() noexcept;
  /// The MTP block reads what the session has read.
  Status catch_up();
  /// The pass that take_hidden() was called for was over these tokens, and they count now.
  void committed(std::span<const int32_t> tokens) noexcept;
  /// The ledger has n_tokens left; `checkpoint`: the one of that length, -1 = none.
  void truncated(uint32_t n_tokens, int32_t checkpoint) noexcept;
  /// Every position is another one now; the last tokens are the same.
  void rebased() noexcept;
  /// Nothing is known of the text before position `next`.
  void restart(uint64_t next) noexcept;
  void save_checkpoint(size_t index) noexcept;
  Status copy_from(const Drafters& from);
  void cancel() noexcept;
  void resume() noexcept;

  void add_totals(KvTotals* totals) const;
  /// Rows of their own, and what the engine holds for them.
  void add_memory(std::vector<MemoryRow>* rows, EngineBytes* bytes) const;

 private:
  Status propose_any(int32_t next, uint32_t most, float* scratch, int32_t* drafts, Drafted* out);
  Status propose_by_model(int32_t next, uint32_t most, float* scratch, int32_t* drafts,
                          Drafted* out);
  void learn(const Drafted& drafts, uint32_t n_read, double seconds, uint32_t n_sessions);

  SessionCore& core_;
  std::unique_ptr<NgramDrafter> ngram_;
  std::unique_ptr<MtpDrafter> mtp_;
  std::unique_ptr<ModelDrafter> draft_model_;
  DraftPace pace_, mtp_pace_, model_pace_;
  SharedPass shared_pass_;
  sharpi_draft_stats draft_stats_{};
  std::array<DraftPlace, kMaxDraft> draft_places_{};
};

}  // namespace sharpi
