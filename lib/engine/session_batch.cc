// SPDX-License-Identifier: MIT
// Drafts of several sessions in one pass: each reads a token and as many drafts behind it as it
// brought, and draws for itself. Sessions without drafts take part with their one row.
#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "base/limits.h"
#include "base/no_throw.h"
#include "engine/batch_read.h"
#include "engine/seconds.h"
#include "engine/session.h"

namespace sharpi {
namespace {

/// Drafts are left out, the last ones of the longest reads first, until no more rows than `most`
/// are left: the first tokens always fit.
void shorten(std::span<BatchRead> reads, size_t most) {
  size_t all = 0;
  for (const BatchRead& r : reads) all += r.tokens.size();
  for (; all > most; --all) {
    const auto longest = std::max_element(
        reads.begin(), reads.end(),
        [](const BatchRead& a, const BatchRead& b) { return a.tokens.size() < b.tokens.size(); });
    longest->tokens = longest->tokens.first(longest->tokens.size() - 1);
  }
}

Status cancelled(uint32_t index) {
  return Status::native_error(Code::kCancelled, static_cast<int32_t>(index),
                              "reads[%u] was cancelled; no session read a token", index);
}

}  // namespace

/// What can be refused before anything changes.
Status SessionBatch::check(const BatchRead& read, uint32_t index, const Model& model) {
  if (read.session->model_.get() != &model) {
    return Status::error(Code::kInvalidArgument, "session %u belongs to another model", index);
  }
  if (read.tokens.empty()) {
    return Status::error(Code::kInvalidArgument, "session %u reads no token", index);
  }
  SHARPI_TRY(read.session->check_reads(read.tokens, read.params));
  const Status begun = read.session->end_call(read.session->begin_call());
  if (begun.code() == Code::kCancelled) return cancelled(index);
  SHARPI_TRY(begun);
  SHARPI_TRY(read.session->check_tokens(read.tokens));
  return read.session->check_room(1);
}

Status SessionBatch::verify(std::span<BatchRead> reads) {
  const Model& model = *reads[0].session->model_;
  const ModelShape& shape = model.plan().model;
  for (BatchRead& r : reads) r.n_read = 0;
  if (reads.size() > shape.max_batch || reads.size() > kMaxBatch) {
    return Status::error(Code::kInvalidArgument,
                         "the batch has %zu sessions, but the plan's max_batch is %u", reads.size(),
                         shape.max_batch);
  }
  for (uint32_t i = 0; i < reads.size(); ++i) SHARPI_TRY(check(reads[i], i, model));
  bool changed = false;  // from the first one that made room on, no cancel ends the call
  for (uint32_t i = 0; i < reads.size(); ++i) {
    Session& s = *reads[i].session;
    s.changed_ = changed;
    const Status room = s.end_call(no_throw([&] { return s.make_room(1); }));
    if (room.code() == Code::kCancelled) return cancelled(i);
    SHARPI_TRY(room);
    changed = s.changed_;
  }
  for (BatchRead& r : reads) r.tokens = r.tokens.first(r.session->most_rows(r.tokens));
  shorten(reads, std::min(shape.head_rows(), shape.max_rows()));
  return no_throw([&] { return run(reads); });
}

/// One pass over all rows, then every session's draws. The pass fails for all; a draw that the
/// device fails ends the call, and the sessions before it have read.
Status SessionBatch::run(std::span<BatchRead> reads) {
  const Model& model = *reads[0].session->model_;
  std::array<SequenceRows, kMaxBatch> rows;
  std::array<std::span<TierSession* const>, kMaxBatch> lists;
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < reads.size(); ++i) {
    Session& s = *reads[i].session;
    SequenceRows& q = rows[i];
    q.ledger = &s.ledger_;
    q.first_row = static_cast<uint32_t>(tokens.size());
    q.n_rows = static_cast<uint32_t>(reads[i].tokens.size());
    q.position = s.ledger_.next_position();
    q.drafted = q.n_rows > 1;
    SHARPI_TRY(s.take_hidden(&q));
    lists[i] = s.tier_list_;
    tokens.insert(tokens.end(), reads[i].tokens.begin(), reads[i].tokens.end());
  }
  Submission all;
  all.tokens = tokens.data();
  all.n_rows = static_cast<uint32_t>(tokens.size());
  all.sequences = {rows.data(), reads.size()};
  const auto start = std::chrono::steady_clock::now();
  const Status done = model.run(all, {lists.data(), reads.size()});
  for (size_t i = 0; i < reads.size(); ++i) reads[i].session->pass_failed(done, rows[i].n_rows);
  SHARPI_TRY(done);
  for (BatchRead& r : reads) {
    Session& s = *r.session;
    s.first_logit_row_ = 0;
    const auto n = static_cast<uint32_t>(r.tokens.size());
    if (n == 1) {
      r.n_read = 1;
      s.commit(r.tokens);
    } else {
      SHARPI_TRY(s.accept(r.tokens, r.params, &r.n_read));
      s.count_drafts(n - 1, r.n_read - 1);
      s.draft_stats_.verify_seconds += seconds_since(start);
    }
    s.n_decode_ += r.n_read;
    s.decode_seconds_ += seconds_since(start);
    s.n_logit_rows_ = 1;
  }
  return Status::ok();
}

}  // namespace sharpi
