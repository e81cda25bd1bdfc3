// SPDX-License-Identifier: MIT
// Several sessions in one pass: each reads a token and as many drafts behind it as the host brought
// or its drafters found, and draws for itself. Sessions without drafts take part with their one
// row.
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

Status cancelled(const char* list, uint32_t index) {
  return Status::native_error(Code::kCancelled, static_cast<int32_t>(index),
                              "%s[%u] was cancelled; no session read a token", list, index);
}

Status too_many(size_t n, uint32_t most) {
  return Status::error(Code::kInvalidArgument,
                       "%zu sessions in one batch, the plan's max_batch is %u", n, most);
}

}  // namespace

/// A session's step before its tokens are read: what was drawn, the drafts behind it, and what puts
/// the draw back.
struct BatchDraw {
  SamplerMark mark;
  Drafted drafts;
  std::array<int32_t, kMaxDraft + 1> tokens{};
  bool drawn = false, ends = false;
  double seconds = 0;  // of its drafter
};

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
  if (begun.code() == Code::kCancelled) return cancelled("reads", index);
  SHARPI_TRY(begun);
  SHARPI_TRY(read.session->check_tokens(read.tokens));
  return read.session->check_room(1);
}

Status SessionBatch::verify(std::span<BatchRead> reads) {
  const Model& model = *reads[0].session->model_;
  const ModelShape& shape = model.plan().model;
  for (BatchRead& r : reads) r.n_read = 0;
  if (reads.size() > shape.max_batch || reads.size() > kMaxBatch) {
    return too_many(reads.size(), shape.max_batch);
  }
  for (uint32_t i = 0; i < reads.size(); ++i) SHARPI_TRY(check(reads[i], i, model));
  bool changed = false;  // from the first one that made room on, no cancel ends the call
  for (uint32_t i = 0; i < reads.size(); ++i) {
    Session& s = *reads[i].session;
    s.changed_ = changed;
    const Status room = s.end_call(no_throw([&] { return s.make_room(1); }));
    if (room.code() == Code::kCancelled) return cancelled("reads", i);
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

Status SessionBatch::check(std::span<const BatchStep> steps) {
  const Model& model = *steps[0].session->model_;
  const uint32_t most = model.plan().model.max_batch;
  if (steps.size() > most || steps.size() > kMaxBatch) return too_many(steps.size(), most);
  for (uint32_t i = 0; i < steps.size(); ++i) {
    Session& s = *steps[i].session;
    if (s.model_.get() != &model) {
      return Status::error(Code::kInvalidArgument, "session %u belongs to another model", i);
    }
    if (steps[i].out.empty()) {
      return Status::error(Code::kBufferTooSmall,
                           "steps[%u]: a step gives at least one token, cap is 0", i);
    }
    const Status begun = s.end_call(s.begin_call());
    if (begun.code() == Code::kCancelled) return cancelled("steps", i);
    SHARPI_TRY(begun);
  }
  return Status::ok();
}

Status SessionBatch::step(std::span<BatchStep> steps) {
  for (BatchStep& s : steps) s.n = 0;
  SHARPI_TRY(check(steps));
  std::array<BatchDraw, kMaxBatch> drawn;
  const Status done = no_throw([&]() -> Status {
    for (uint32_t i = 0; i < steps.size(); ++i) {
      const Status one = draw(&steps[i], &drawn[i]);
      if (one.code() == Code::kCancelled) return cancelled("steps", i);
      if (!one.is_ok()) {
        return Status::native_error(one.code(), one.native(), "steps[%u]: %s", i,
                                    one.text().c_str());
      }
    }
    return read_drawn(steps, {drawn.data(), steps.size()});
  });
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].n == 0 && drawn[i].drawn) steps[i].session->sampler_.restore(drawn[i].mark);
  }
  return done;
}

/// Draws a token, and has drafts made behind it, as Session::step().
Status SessionBatch::draw(BatchStep* step, BatchDraw* out) {
  Session& s = *step->session;
  out->mark = s.sampler_.mark();
  out->drawn = true;
  SHARPI_TRY(s.sample(step->params, out->tokens.data()));
  const Tokenizer* text = s.model_->text()->tokenizer();
  out->ends = text != nullptr && text->is_end_of_generation(out->tokens[0]);
  if (out->ends) return Status::ok();
  const auto start = std::chrono::steady_clock::now();
  const auto most = static_cast<uint32_t>(std::min<size_t>(step->out.size() - 1, kMaxDraft));
  SHARPI_TRY(
      s.end_call(s.propose(out->tokens[0], step->params, most, &out->tokens[1], &out->drafts)));
  out->seconds = seconds_since(start) - out->drafts.behind;
  return Status::ok();
}

/// One pass over the tokens that do not end a generation; those that do are given as they are.
Status SessionBatch::read_drawn(std::span<BatchStep> steps, std::span<BatchDraw> drawn) {
  std::array<BatchRead, kMaxBatch> reads;
  std::array<uint32_t, kMaxBatch> who{};
  uint32_t n = 0;
  for (uint32_t i = 0; i < steps.size(); ++i) {
    if (drawn[i].ends) continue;
    sharpi_sample_params rest = steps[i].params;  // of the tokens behind the first
    if (rest.logprobs != nullptr) rest.logprobs += rest.n_logprobs;
    reads[n] = {steps[i].session, {drawn[i].tokens.data(), drawn[i].drafts.n + 1}, rest, 0};
    who[n++] = i;
  }
  const auto start = std::chrono::steady_clock::now();
  const Status done = n == 0 ? Status::ok() : verify({reads.data(), n});
  const double seconds = seconds_since(start);
  for (uint32_t k = 0; k < n; ++k) {
    BatchStep& s = steps[who[k]];
    s.n = reads[k].n_read;
    std::copy_n(drawn[who[k]].tokens.begin(), s.n, s.out.begin());
    drawn[who[k]].drafts.n = static_cast<uint32_t>(reads[k].tokens.size()) - 1;  // that were tried
  }
  if (done.code() == Code::kCancelled) {
    return cancelled("steps", who[static_cast<uint32_t>(done.native())]);
  }
  SHARPI_TRY(done);
  learn(steps, drawn, seconds);
  for (size_t i = 0; i < steps.size(); ++i) {
    if (!drawn[i].ends) continue;
    steps[i].n = 1;
    steps[i].out[0] = drawn[i].tokens[0];
  }
  return Status::ok();
}

/// After a pass of so many seconds over all that was read.
void SessionBatch::learn(std::span<BatchStep> steps, std::span<BatchDraw> drawn, double seconds) {
  uint32_t n_rows = 0, n_sessions = 0;
  for (const BatchDraw& d : drawn) {
    if (d.ends) continue;
    n_rows += d.drafts.n + 1;
    ++n_sessions;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const BatchDraw& d = drawn[i];
    if (d.ends) continue;
    Session& s = *steps[i].session;
    s.shared_pass_.took(n_rows, seconds);
    s.learn(d.drafts, steps[i].n,
            s.shared_pass_.price(n_sessions, n_rows, seconds, d.drafts.n + 1, d.seconds),
            n_sessions);
  }
}

}  // namespace sharpi
