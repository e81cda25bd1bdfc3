// SPDX-License-Identifier: MIT
#include "engine/pass_runner.h"

#include "base/no_throw.h"

namespace sharpi {

Status PassRunner::run(const PassRequest& pass) {
  SequenceRows q;
  q.drafted = pass.drafted;
  q.ledger = &core_.ledger;
  q.n_rows = static_cast<uint32_t>(pass.tokens.size());
  q.position = core_.ledger.next_position();
  q.last_logit_row = pass.rows_to_end;
  const uint32_t here = pass.want_rows > pass.rows_to_end ? pass.want_rows - pass.rows_to_end : 0;
  q.first_logit_row = here >= q.n_rows ? 0 : q.n_rows - here;
  q.n_best = core_.n_best;
  SHARPI_TRY(drafters_.take_hidden(&q));
  Submission rows;
  rows.tokens = pass.tokens.data();
  rows.n_rows = q.n_rows;
  rows.sequences = {&q, 1};
  rows.cancel = core_.stop_flag();
  rows.meanwhile = pass.meanwhile;
  rows.progress = pass.progress;
  bool rings_written = false;
  rows.rings_written = &rings_written;
  const std::span<TierSession* const> list(core_.tier_list);
  Status done = no_throw([&] { return core_.model->run(rows, {&list, 1}); });
  if (done.is_ok()) core_.logit_rows.first = 0;
  failed(done, q.n_rows, rings_written);
  return done;
}

/// A pass that stopped where it was asked to has written nothing that is read later; one that
/// failed may have reached captured queries, logits and rings.
void PassRunner::failed(const Status& why, uint32_t n_rows, bool rings_written) {
  if (why.is_ok() || why.code() == Code::kCancelled) return;
  core_.ledger.spoil_capture(n_rows);
  if (rings_written) core_.ledger.spoil_rings(n_rows, core_.shape.n_draft + 1);
  core_.logit_rows.n = 0;
}

void PassRunner::commit(std::span<const int32_t> tokens) {
  core_.changed = false;
  for (const auto& tier : core_.tiers) tier->store().commit_state();
  core_.ledger.commit(static_cast<uint32_t>(tokens.size()));
  core_.history.insert(core_.history.end(), tokens.begin(), tokens.end());
  drafters_.committed(tokens);
}

void PassRunner::commit_drafted(std::span<const int32_t> tokens) {
  const auto n = static_cast<uint32_t>(tokens.size());
  core_.changed = false;
  for (const auto& tier : core_.tiers) tier->store().commit_rows(n);
  core_.ledger.commit(n);
  drafters_.committed(tokens);
}

}  // namespace sharpi
