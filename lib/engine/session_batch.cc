// SPDX-License-Identifier: MIT
#include "engine/session_batch.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/limits.h"
#include "base/no_throw.h"
#include "engine/seconds.h"
#include "engine/session.h"
#include "engine/session_state.h"
#include "tier/meanwhile.h"

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

Status check_model(const Session& session, uint32_t index, const Model& model) {
  if (&session.model() == &model) return Status::ok();
  return Status::error(Code::kInvalidArgument, "session %u belongs to another model", index);
}

}  // namespace

Status SessionBatch::check_size(size_t n, const Model& model) {
  const uint32_t most = model.plan().model.max_batch;
  if (n <= most && n <= kMaxBatch) return Status::ok();
  return Status::error(Code::kInvalidArgument,
                       "the batch has %zu sessions, but the plan's max_batch is %u", n, most);
}

/// A session's step before its tokens are read: what was drawn, the drafts behind it, and what puts
/// the draw back.
struct BatchDraw {
  SamplerMark mark;
  Drafted drafts;
  std::array<int32_t, kMaxDraft + 1> tokens{};
  bool drawn = false, ends = false;
  double draw_seconds = 0, draft_seconds = 0;  // what the draw and its drafter took
};

Status SessionBatch::Caller::cancelled(uint32_t index, const Status& why) const {
  if (list == nullptr || why.code() != Code::kCancelled) return why;
  return Status::native_error(Code::kCancelled, static_cast<int32_t>(index),
                              "%s[%u] was cancelled; no session read a token", list, index);
}

Status SessionBatch::Caller::named(uint32_t index, const Status& why) const {
  if (list == nullptr || why.is_ok()) return why;
  return Status::native_error(why.code(), why.native(), "%s[%u]: %s", list, index,
                              why.text().c_str());
}

/// With a group, what all ranks say together answers a cancel.
Status SessionBatch::Caller::begin(uint32_t index, SessionState* s) const {
  const Status begun = s->core.begin_call();
  return cancelled(index, s->ranks.are_needed() ? begun : s->end_call(begun));
}

SessionState& SessionBatch::state_of(Session& session) {
  return *session.state_;
}

Status SessionBatch::decode(std::span<Session* const> sessions, std::span<const int32_t> tokens) {
  SHARPI_TRY(check_size(sessions.size(), sessions[0]->model()));
  std::array<BatchRead, kMaxBatch> reads;
  for (uint32_t i = 0; i < sessions.size(); ++i)
    reads[i] = {sessions[i], tokens.subspan(i, 1), default_sample_params(), 0, i};
  return read({reads.data(), sessions.size()}, {"sessions", nullptr});
}

Status SessionBatch::verify(std::span<BatchRead> reads) {
  SHARPI_TRY(state_of(*reads[0].session).ranks.refuse("verifying drafts"));
  return read(reads, {"reads", nullptr});
}

Status SessionBatch::verify_alone(BatchRead* one) {
  Meanwhile meanwhile{one->params.meanwhile, one->params.user_data, one->tokens[0]};
  return read({one, 1}, {nullptr, &meanwhile});
}

Status SessionBatch::step(std::span<BatchStep> steps) {
  return step(steps, {"steps", nullptr});
}

Status SessionBatch::step_alone(BatchStep* one) {
  Meanwhile meanwhile{one->params.meanwhile, one->params.user_data, 0};
  return step({one, 1}, {nullptr, &meanwhile});
}

/// What can be refused before anything changes.
Status SessionBatch::check(const BatchRead& read, uint32_t index, const Model& model,
                           const Caller& by) {
  SHARPI_TRY(check_model(*read.session, index, model));
  if (read.tokens.empty()) {
    return Status::error(Code::kInvalidArgument, "session %u reads no token", index);
  }
  SessionState& s = state_of(*read.session);
  SHARPI_TRY(s.verifier.check(read.tokens, read.params));
  SHARPI_TRY(by.begin(index, &s));
  SHARPI_TRY(s.core.check_tokens(read.tokens, read.first));
  return s.bounded.check_room(1);
}

/// Makes room for a row in one session. Once a session has changed to make room (*changed), no
/// cancel ends the call any more.
Status SessionBatch::make_room(SessionState* s, uint32_t index, const Caller& by, bool* changed) {
  s->core.changed = *changed;
  SHARPI_TRY(by.cancelled(index, s->end_call(no_throw([&] { return s->bounded.make_room(1); }))));
  *changed = s->core.changed;
  return Status::ok();
}

Status SessionBatch::read(std::span<BatchRead> reads, const Caller& by) {
  const Model& model = reads[0].session->model();
  const ModelShape& shape = model.plan().model;
  for (BatchRead& r : reads) r.n_read = 0;
  if (model.ranks() != nullptr) return read_with_ranks(reads, by);
  SHARPI_TRY(check_size(reads.size(), model));
  for (uint32_t i = 0; i < reads.size(); ++i) SHARPI_TRY(check(reads[i], i, model, by));
  const auto start = Clock::now();
  bool changed = false;
  for (uint32_t i = 0; i < reads.size(); ++i)  // after every check that can refuse
    SHARPI_TRY(make_room(&state_of(*reads[i].session), i, by, &changed));
  for (BatchRead& r : reads) r.tokens = state_of(*r.session).verifier.fitting(r.tokens);
  shorten(reads, std::min(shape.head_rows(), shape.max_rows()));
  return no_throw([&] { return run(reads, start, by); });
}

/// One pass over all rows. It fails for all.
Status SessionBatch::pass(std::span<const BatchRead> reads, const Caller& by, bool* rings_written) {
  const Model& model = reads[0].session->model();
  std::array<SequenceRows, kMaxBatch> rows;
  std::array<std::span<TierSession* const>, kMaxBatch> lists;
  std::array<int32_t, kMaxBatch> few;  // a token each, or one session's drafts: nothing allocates
  std::vector<int32_t> many;
  size_t n = 0;
  for (const BatchRead& r : reads) n += r.tokens.size();
  if (n > few.size()) many.resize(n);
  int32_t* tokens = n > few.size() ? many.data() : few.data();
  Submission all;
  for (size_t i = 0; i < reads.size(); ++i) {
    SessionState& s = state_of(*reads[i].session);
    rows[i].first_row = all.n_rows;
    rows[i].drafted = reads[i].tokens.size() > 1;
    SHARPI_TRY(s.runner.begin(static_cast<uint32_t>(reads[i].tokens.size()), &rows[i]));
    lists[i] = s.core.tier_list;
    std::copy(reads[i].tokens.begin(), reads[i].tokens.end(), tokens + all.n_rows);
    all.n_rows += rows[i].n_rows;
  }
  all.tokens = tokens;
  all.sequences = {rows.data(), reads.size()};
  all.rings_written = rings_written;
  if (by.list == nullptr) all.cancel = state_of(*reads[0].session).core.stop_flag();
  all.meanwhile = by.meanwhile;
  const Status done = no_throw([&] { return model.run(all, {lists.data(), reads.size()}); });
  for (size_t i = 0; i < reads.size(); ++i)
    state_of(*reads[i].session).runner.failed(done, rows[i].n_rows, *rings_written);
  return done;
}

/// A pass, then every session's draws. A draw that the device fails ends the call, and the sessions
/// before it have read.
Status SessionBatch::run(std::span<BatchRead> reads, Clock::time_point start, const Caller& by) {
  bool rings_written = false;
  SHARPI_TRY(pass(reads, by, &rings_written));
  if (by.meanwhile != nullptr) by.meanwhile->run();  // unless it ran while a device computed
  for (size_t i = 0; i < reads.size(); ++i) {
    BatchRead& r = reads[i];
    const Status settled =
        state_of(*r.session).verifier.settle(r.tokens, r.params, start, &r.n_read);
    if (settled.is_ok()) continue;
    // For this session and those behind it the pass has failed: they have not read.
    for (size_t k = i; k < reads.size(); ++k)
      state_of(*reads[k].session)
          .runner.failed(settled, static_cast<uint32_t>(reads[k].tokens.size()), rings_written);
    return settled;
  }
  return Status::ok();
}

Status SessionBatch::check(std::span<const BatchStep> steps, const Caller& by) {
  const Model& model = steps[0].session->model();
  SHARPI_TRY(check_size(steps.size(), model));
  for (uint32_t i = 0; i < steps.size(); ++i) {
    SHARPI_TRY(check_model(*steps[i].session, i, model));
    if (steps[i].out.empty()) {
      constexpr const char* kWhy = "cap is 0, but a step gives at least one token";
      return by.list == nullptr
                 ? Status::error(Code::kBufferTooSmall, "%s", kWhy)
                 : Status::error(Code::kBufferTooSmall, "%s[%u]: %s", by.list, i, kWhy);
    }
    SHARPI_TRY(by.begin(i, &state_of(*steps[i].session)));
  }
  return Status::ok();
}

Status SessionBatch::step(std::span<BatchStep> steps, const Caller& by) {
  for (BatchStep& s : steps) s.n = 0;
  if (steps[0].session->model().ranks() != nullptr) return step_with_ranks(steps, by);
  SHARPI_TRY(check(steps, by));
  std::array<BatchDraw, kMaxBatch> drawn;
  const std::span<BatchDraw> own(drawn.data(), steps.size());
  const Status done = no_throw([&]() -> Status {
    SHARPI_TRY(draw_all(steps, own, by));
    return read_drawn(steps, own, by);
  });
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].n != 0 || !drawn[i].drawn) continue;
    state_of(*steps[i].session).drawer.sampler().restore(drawn[i].mark);
  }
  return done;
}

Status SessionBatch::draw_all(std::span<BatchStep> steps, std::span<BatchDraw> drawn,
                              const Caller& by) {
  for (uint32_t i = 0; i < steps.size(); ++i) {
    const Status one = draw(&steps[i], &drawn[i]);
    SHARPI_TRY(one.code() == Code::kCancelled ? by.cancelled(i, one) : by.named(i, one));
  }
  return Status::ok();
}

/// Draws a token, and has drafts made behind it.
Status SessionBatch::draw(BatchStep* step, BatchDraw* out) {
  SessionState& s = state_of(*step->session);
  const auto start = Clock::now();
  out->mark = s.drawer.sampler().mark();
  out->drawn = true;
  SHARPI_TRY(s.drawer.sample(step->params, out->tokens.data()));
  const Tokenizer* text = s.core.model->text()->tokenizer();
  out->ends = text != nullptr && text->is_end_of_generation(out->tokens[0]);
  if (out->ends) return Status::ok();
  out->draw_seconds = seconds_since(start);
  const auto drafting = Clock::now();
  const auto most = static_cast<uint32_t>(std::min<size_t>(step->out.size() - 1, kMaxDraft));
  SHARPI_TRY(
      s.end_call(s.drafters.propose(out->tokens[0], step->params, most, s.drawer.scratch().data(),
                                    &out->tokens[1], &out->drafts)));
  // Drafts that the pass leaves out are not counted, because they say nothing about their drafter.
  out->drafts.n =
      static_cast<uint32_t>(s.verifier.fitting({out->tokens.data(), out->drafts.n + 1}).size()) - 1;
  out->draft_seconds = seconds_since(drafting) - out->drafts.behind;
  return Status::ok();
}

/// One pass over the tokens that do not end a generation; those that do are given as they are.
Status SessionBatch::read_drawn(std::span<BatchStep> steps, std::span<BatchDraw> drawn,
                                const Caller& by) {
  std::array<BatchRead, kMaxBatch> reads;
  std::array<uint32_t, kMaxBatch> who{};
  uint32_t n = 0;
  for (uint32_t i = 0; i < steps.size(); ++i) {
    if (drawn[i].ends) continue;
    sharpi_sample_params rest = steps[i].params;  // of the tokens behind the first
    if (rest.logprobs != nullptr) rest.logprobs += rest.n_logprobs;
    reads[n] = {steps[i].session, {drawn[i].tokens.data(), drawn[i].drafts.n + 1}, rest, 0, 0};
    who[n++] = i;
  }
  if (by.meanwhile != nullptr) by.meanwhile->token = drawn[0].tokens[0];
  const auto start = Clock::now();
  const Status done = n == 0 ? Status::ok() : read({reads.data(), n}, by);
  const double seconds = seconds_since(start);
  for (uint32_t k = 0; k < n; ++k) {
    BatchStep& s = steps[who[k]];
    s.n = reads[k].n_read;
    std::copy_n(drawn[who[k]].tokens.begin(), s.n, s.out.begin());
    drawn[who[k]].drafts.n = static_cast<uint32_t>(reads[k].tokens.size()) - 1;  // that were tried
  }
  if (done.code() == Code::kCancelled && by.list != nullptr)
    return by.cancelled(who[static_cast<uint32_t>(done.native())], done);
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
    Drafters& drafters = state_of(*steps[i].session).drafters;
    if (pass.n_sessions == 1) {
      drafters.learn(d.drafts, steps[i].n, d.draw_seconds + d.draft_seconds + seconds);
    } else {
      drafters.learn_shared(d.drafts, steps[i].n, pass, d.draft_seconds);
    }
  }
}

}  // namespace sharpi
