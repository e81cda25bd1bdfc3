// SPDX-License-Identifier: MIT
#include "engine/pass_runner.h"

#include <algorithm>

#include "base/no_throw.h"

namespace sharpi {

Status PassRunner::begin(uint32_t n_rows, SequenceRows* rows) {
  rows->ledger = &core_.ledger();
  rows->n_rows = n_rows;
  rows->position = core_.ledger().next_position();
  rows->n_best = core_.n_best;
  rows->adapters = core_.adapters.uses();
  if (core_.shape.replay_every != 0) SHARPI_TRY(begin_replay(rows));
  return drafters_.take_hidden(rows);
}

/// Rows of a short pass wait in the ring of queries, as long as there is room, for what is scored
/// together sees more; those of a long one are scored with it.
Status PassRunner::begin_replay(SequenceRows* rows) {
  const KvLedger& ledger = core_.ledger();
  const uint32_t waiting = ledger.n_tokens() - ledger.scored_tokens(),
                 most = core_.shape.capture_window;
  settles_ = uint64_t{waiting} + rows->n_rows > most;
  if (settles_) SHARPI_TRY(selector_.score_waiting());
  replays_ = rows->n_rows > most;
  rows->replay = replays_;
  return Status::ok();
}

/// Of a chunk, whose last rows of logits may be wanted.
Status PassRunner::begin(const PassRequest& pass, SequenceRows* q) {
  SHARPI_TRY(begin(static_cast<uint32_t>(pass.tokens.size()), q));
  q->last_logit_row = pass.rows_to_end;
  const uint32_t here = pass.want_rows > pass.rows_to_end ? pass.want_rows - pass.rows_to_end : 0;
  q->first_logit_row = here >= q->n_rows ? 0 : q->n_rows - here;
  return Status::ok();
}

/// Replay scores are made between passes, and so is room.
uint64_t PassRunner::room_of_pipeline(uint32_t n_chunk) const {
  if (core_.model->passes_under_way(n_chunk) < 2) return 0;
  if (core_.shape.replay_every != 0) return 0;
  const uint64_t context = core_.shape.n_ctx - core_.ledger().n_tokens();
  return std::min<uint64_t>(context, core_.free_slots());
}

Status PassRunner::start(const PassRequest& pass, Pipeline* pipeline, bool* rings_written) {
  SequenceRows q;
  SHARPI_TRY(begin(pass, &q));
  Submission rows;
  rows.tokens = pass.tokens.data();
  rows.n_rows = q.n_rows;
  rows.sequences = {&q, 1};
  rows.rings_written = rings_written;
  return pipeline->start(rows);
}

Status PassRunner::run(const PassRequest& pass, bool* out_rings) {
  SequenceRows q;
  SHARPI_TRY(begin(pass, &q));
  Submission rows;
  rows.tokens = pass.tokens.data();
  rows.n_rows = q.n_rows;
  rows.sequences = {&q, 1};
  rows.cancel = core_.stop_flag();
  rows.progress = pass.progress;
  bool rings_written = false;
  rows.rings_written = &rings_written;
  const std::span<TierSession* const> list(core_.tier_list);
  Status done = no_throw([&] { return core_.model->run(rows, {&list, 1}); });
  failed(done, q.n_rows, rings_written);
  if (out_rings != nullptr) *out_rings = rings_written;
  return done;
}

/// A pass that stopped where it was asked to has written nothing that is read later; one that
/// failed may have reached captured queries, logits and rings.
void PassRunner::failed(const Status& why, uint32_t n_rows, bool rings_written) {
  if (why.is_ok() || why.code() == Code::kCancelled) return;
  if (settles_) core_.transcript.mark_scored();  // their queries may be gone
  core_.transcript.fail(n_rows, rings_written, core_.shape.n_draft + 1);
}

/// The pass behind the oldest writes its state where that of what was read is.
void PassRunner::failed_under_way(const Status& why, uint32_t n_oldest, uint32_t n_rows,
                                  bool rings_written) {
  failed(why, n_rows, rings_written);
  if (n_rows > n_oldest && core_.spec().is_hybrid()) core_.transcript.lose_state();
}

void PassRunner::commit(std::span<const int32_t> tokens, uint32_t n_logit_rows) {
  core_.changed = false;
  for (const auto& tier : core_.tiers) tier->store().commit_state();
  if (settles_) core_.transcript.mark_scored();
  core_.transcript.commit(tokens, n_logit_rows);
  if (replays_) core_.transcript.mark_scored();
  drafters_.committed(tokens);
}

void PassRunner::commit_tried(std::span<const int32_t> tokens) {
  core_.changed = false;
  for (const auto& tier : core_.tiers)
    tier->store().commit_rows(static_cast<uint32_t>(tokens.size()));
  if (settles_) core_.transcript.mark_scored();
  core_.transcript.commit_tried();
  if (replays_) core_.transcript.mark_scored();
  drafters_.committed(tokens);
}

}  // namespace sharpi
