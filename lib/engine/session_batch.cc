// SPDX-License-Identifier: MIT
#include "engine/session_batch.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include "base/limits.h"
#include "base/no_throw.h"
#include "engine/seconds.h"
#include "engine/session.h"
#include "engine/session_state.h"

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

/// `list`: what the caller calls the sessions.
Status cancelled(const char* list, uint32_t index) {
  return Status::native_error(Code::kCancelled, static_cast<int32_t>(index),
                              "%s[%u] was cancelled; no session read a token", list, index);
}

Status check_size(size_t n, const Model& model) {
  const uint32_t most = model.plan().model.max_batch;
  if (n <= most && n <= kMaxBatch) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "the batch has %zu sessions, but the plan's max_batch is %u", n, most);
}

Status check_model(const Session& session, uint32_t index, const Model& model) {
  if (&session.model() == &model) return Status::ok();
  return Status::error(Code::kInvalidArgument, "session %u belongs to another model", index);
}

/// Asks one session to make room for a row. From the first one that did on, no cancel ends the
/// call: *changed.
Status make_room(SessionState* s, const char* list, uint32_t index, bool* changed) {
  s->core.changed = *changed;
  const Status room = s->end_call(no_throw([&] { return s->bounded.make_room(1); }));
  if (room.code() == Code::kCancelled) return cancelled(list, index);
  SHARPI_TRY(room);
  *changed = s->core.changed;
  return Status::ok();
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

SessionState& SessionBatch::state_of(Session& session) {
  return *session.state_;
}

/// The session's share of the pass; its rows begin at rows->first_row.
Status SessionBatch::begin_rows(SessionState* s, SequenceRows* rows) {
  rows->ledger = &s->core.ledger;
  rows->position = s->core.ledger.next_position();
  rows->n_best = s->core.n_best;
  return s->drafters.take_hidden(rows);
}

Status SessionBatch::decode(std::span<Session* const> sessions, std::span<const int32_t> tokens) {
  const Model& model = sessions[0]->model();
  SHARPI_TRY(check_size(sessions.size(), model));
  std::array<SequenceRows, kMaxBatch> rows;
  std::array<std::span<TierSession* const>, kMaxBatch> lists;
  for (uint32_t i = 0; i < sessions.size(); ++i) {
    SHARPI_TRY(check_model(*sessions[i], i, model));
    SessionState& s = state_of(*sessions[i]);
    const Status begun = s.end_call(s.core.begin_call());
    if (begun.code() == Code::kCancelled) return cancelled("sessions", i);
    SHARPI_TRY(begun);
    SHARPI_TRY(s.core.check_tokens(tokens.subspan(i, 1), i));
    SHARPI_TRY(s.bounded.check_room(1));
    rows[i].first_row = i;
    rows[i].n_rows = 1;
    lists[i] = s.core.tier_list;
  }
  bool changed = false;
  for (uint32_t i = 0; i < sessions.size(); ++i) {  // after every check that can refuse
    SHARPI_TRY(make_room(&state_of(*sessions[i]), "sessions", i, &changed));
  }
  // Not before: making room may let drafters catch up, and moves where their hidden rows go.
  for (uint32_t i = 0; i < sessions.size(); ++i) {
    SHARPI_TRY(begin_rows(&state_of(*sessions[i]), &rows[i]));
  }
  Submission all;
  all.tokens = tokens.data();
  all.n_rows = static_cast<uint32_t>(sessions.size());
  all.sequences = {rows.data(), sessions.size()};
  bool rings_written = false;
  all.rings_written = &rings_written;
  const auto start = std::chrono::steady_clock::now();
  const Status read = no_throw([&] { return model.run(all, {lists.data(), sessions.size()}); });
  const double seconds = seconds_since(start);
  for (Session* s : sessions) state_of(*s).runner.failed(read, 1, rings_written);
  SHARPI_TRY(read);
  for (size_t i = 0; i < sessions.size(); ++i)
    state_of(*sessions[i]).verifier.settle_one(tokens[i], seconds);
  return Status::ok();
}

/// What can be refused before anything changes.
Status SessionBatch::check(const BatchRead& read, uint32_t index, const Model& model) {
  SHARPI_TRY(check_model(*read.session, index, model));
  if (read.tokens.empty()) {
    return Status::error(Code::kInvalidArgument, "session %u reads no token", index);
  }
  SessionState& s = state_of(*read.session);
  SHARPI_TRY(s.verifier.check(read.tokens, read.params));
  const Status begun = s.end_call(s.core.begin_call());
  if (begun.code() == Code::kCancelled) return cancelled("reads", index);
  SHARPI_TRY(begun);
  SHARPI_TRY(s.core.check_tokens(read.tokens));
  return s.bounded.check_room(1);
}

Status SessionBatch::verify(std::span<BatchRead> reads) {
  const Model& model = reads[0].session->model();
  const ModelShape& shape = model.plan().model;
  for (BatchRead& r : reads) r.n_read = 0;
  SHARPI_TRY(check_size(reads.size(), model));
  for (uint32_t i = 0; i < reads.size(); ++i) SHARPI_TRY(check(reads[i], i, model));
  bool changed = false;
  for (uint32_t i = 0; i < reads.size(); ++i) {
    SHARPI_TRY(make_room(&state_of(*reads[i].session), "reads", i, &changed));
  }
  for (BatchRead& r : reads) r.tokens = state_of(*r.session).verifier.fitting(r.tokens);
  shorten(reads, std::min(shape.head_rows(), shape.max_rows()));
  return no_throw([&] { return run(reads); });
}

/// One pass over all rows, then every session's draws. The pass fails for all; a draw that the
/// device fails ends the call, and the sessions before it have read.
Status SessionBatch::run(std::span<BatchRead> reads) {
  const Model& model = reads[0].session->model();
  std::array<SequenceRows, kMaxBatch> rows;
  std::array<std::span<TierSession* const>, kMaxBatch> lists;
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < reads.size(); ++i) {
    SessionState& s = state_of(*reads[i].session);
    SequenceRows& q = rows[i];
    q.first_row = static_cast<uint32_t>(tokens.size());
    q.n_rows = static_cast<uint32_t>(reads[i].tokens.size());
    q.drafted = q.n_rows > 1;
    SHARPI_TRY(begin_rows(&s, &q));
    lists[i] = s.core.tier_list;
    tokens.insert(tokens.end(), reads[i].tokens.begin(), reads[i].tokens.end());
  }
  Submission all;
  all.tokens = tokens.data();
  all.n_rows = static_cast<uint32_t>(tokens.size());
  all.sequences = {rows.data(), reads.size()};
  bool rings_written = false;
  all.rings_written = &rings_written;
  const auto start = std::chrono::steady_clock::now();
  const Status done = model.run(all, {lists.data(), reads.size()});
  for (size_t i = 0; i < reads.size(); ++i)
    state_of(*reads[i].session).runner.failed(done, rows[i].n_rows, rings_written);
  SHARPI_TRY(done);
  for (size_t i = 0; i < reads.size(); ++i) {
    BatchRead& r = reads[i];
    const Status settled =
        state_of(*r.session).verifier.settle(r.tokens, r.params, start, &r.n_read);
    if (settled.is_ok()) continue;
    // For this session and those behind it the pass has failed: they have not read.
    for (size_t k = i; k < reads.size(); ++k)
      state_of(*reads[k].session).runner.failed(settled, rows[k].n_rows, rings_written);
    return settled;
  }
  return Status::ok();
}

Status SessionBatch::check(std::span<const BatchStep> steps) {
  const Model& model = steps[0].session->model();
  SHARPI_TRY(check_size(steps.size(), model));
  for (uint32_t i = 0; i < steps.size(); ++i) {
    SHARPI_TRY(check_model(*steps[i].session, i, model));
    if (steps[i].out.empty()) {
      return Status::error(Code::kBufferTooSmall,
                           "steps[%u]: cap is 0, but a step gives at least one token", i);
    }
    SessionState& s = state_of(*steps[i].session);
    const Status begun = s.end_call(s.core.begin_call());
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
    if (steps[i].n != 0 || !drawn[i].drawn) continue;
    state_of(*steps[i].session).drawer.sampler().restore(drawn[i].mark);
  }
  return done;
}

/// Draws a token, and has drafts made behind it, as Session::step().
Status SessionBatch::draw(BatchStep* step, BatchDraw* out) {
  SessionState& s = state_of(*step->session);
  out->mark = s.drawer.sampler().mark();
  out->drawn = true;
  SHARPI_TRY(s.drawer.sample(step->params, out->tokens.data()));
  const Tokenizer* text = s.core.model->text()->tokenizer();
  out->ends = text != nullptr && text->is_end_of_generation(out->tokens[0]);
  if (out->ends) return Status::ok();
  const auto start = std::chrono::steady_clock::now();
  const auto most = static_cast<uint32_t>(std::min<size_t>(step->out.size() - 1, kMaxDraft));
  SHARPI_TRY(
      s.end_call(s.drafters.propose(out->tokens[0], step->params, most, s.drawer.scratch().data(),
                                    &out->tokens[1], &out->drafts)));
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
  TimedPass pass;
  pass.seconds = seconds;
  for (const BatchDraw& d : drawn) {
    if (d.ends) continue;
    pass.n_rows += d.drafts.n + 1;
    ++pass.n_sessions;
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    const BatchDraw& d = drawn[i];
    if (d.ends) continue;
    state_of(*steps[i].session).drafters.learn_shared(d.drafts, steps[i].n, pass, d.seconds);
  }
}

}  // namespace sharpi
