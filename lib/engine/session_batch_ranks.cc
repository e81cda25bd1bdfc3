// SPDX-License-Identifier: MIT
// Steps of a model whose layers are spread over the processes of a group. A batch goes down the
// ranks in parts, so that each computes one while the next has that before: attention, which no
// session shares, is then computed on all ranks at once, but each part reads the weights for
// itself.
#include <algorithm>
#include <array>

#include "base/hash.h"
#include "base/no_throw.h"
#include "engine/session.h"
#include "engine/session_batch.h"
#include "engine/session_state.h"

namespace sharpi {
namespace {

/// One part of them has rows of one format.
Status check_formats(const SessionState& s, const SessionState& first) {
  for (size_t t = 0; t < s.core.tiers.size(); ++t) {
    if (s.core.tiers[t]->format() == first.core.tiers[t]->format()) continue;
    return Status::error(Code::kUnsupported,
                         "sessions of unlike KV dtypes in one batch cannot be had with a group of "
                         "processes");
  }
  return Status::ok();
}

}  // namespace

/// How a batch is cut, and how far this rank has come.
struct SessionBatch::Parts {
  uint32_t n = 1, n_run = 0;
  std::array<uint32_t, kMaxBatch> ends{};
  std::array<bool, kMaxBatch> rings_written{};
  std::span<const BatchRead> of(std::span<const BatchRead> reads, uint32_t part) const {
    const uint32_t first = part == 0 ? 0 : ends[part - 1];
    return reads.subspan(first, ends[part] - first);
  }
};

/// All ranks name the same sessions, as long as they are, and the same tokens. Rank 0 says in how
/// many parts they go.
RankVerdict SessionBatch::agree(RankCall call, std::span<const BatchRead> reads, const Status& own,
                                std::span<const int32_t> drawn) {
  RankLink& link = *reads[0].session->model().ranks();
  std::array<uint32_t, kMaxBatch> lengths{};
  Hash64 hash;
  for (size_t i = 0; i < reads.size(); ++i) {
    const SessionState& s = state_of(*reads[i].session);
    lengths[i] = s.core.ledger().n_tokens();
    hash.add_u64(s.ranks.number());
    hash.add_u64(lengths[i]);
    hash.add(reads[i].tokens.data(), reads[i].tokens.size_bytes());
  }
  RankWord word;
  word.call = call;
  word.session = state_of(*reads[0].session).ranks.number();
  word.n_tokens = lengths[0];
  word.arguments = hash.value();
  word.status = own;
  word.tokens = drawn;
  if (link.is_first() && call != RankCall::kPassEnd)
    word.value = static_cast<int32_t>(link.parts_of({lengths.data(), reads.size()}));
  RankVerdict all = link.agree(word);
  if (all.status.code() != Code::kCancelled) return all;
  const auto index = static_cast<size_t>(all.status.native());
  if (index < reads.size()) (void)state_of(*reads[index].session).end_call(all.status);
  return all;
}

Status SessionBatch::read_with_ranks(std::span<BatchRead> reads, const Caller& by) {
  const Model& model = reads[0].session->model();
  const GroupCall call(model.ranks()->group());
  SHARPI_TRY(call.entered());
  const Status own = no_throw([&]() -> Status {
    SHARPI_TRY(check_size(reads.size(), model));
    for (uint32_t i = 0; i < reads.size(); ++i) {
      SHARPI_TRY(check(reads[i], i, model, by));
      SHARPI_TRY(check_formats(state_of(*reads[i].session), state_of(*reads[0].session)));
    }
    return Status::ok();
  });
  const RankVerdict all = agree(RankCall::kDecode, reads, own);
  SHARPI_TRY(all.status);
  return read_parts(reads, all.first_value, by);
}

Status SessionBatch::check_with_ranks(std::span<BatchStep> steps, const Caller& by) {
  SHARPI_TRY(check(steps, by));
  for (BatchStep& step : steps) {
    SessionState& s = state_of(*step.session);
    SHARPI_TRY(s.bounded.check_room(1));
    SHARPI_TRY(check_formats(s, state_of(*steps[0].session)));
    SHARPI_TRY(RankCalls::check_draw(step.params));
  }
  return Status::ok();
}

/// The last rank draws for all.
Status SessionBatch::draw_with_ranks(std::span<BatchStep> steps, const Caller& by, int32_t* drawn) {
  for (uint32_t i = 0; i < steps.size(); ++i) {
    const Status one = state_of(*steps[i].session).drawer.sample(steps[i].params, &drawn[i]);
    SHARPI_TRY(by.named(i, one));
  }
  return Status::ok();
}

Status SessionBatch::step_with_ranks(std::span<BatchStep> steps, const Caller& by) {
  RankLink& link = *steps[0].session->model().ranks();
  const GroupCall call(link.group());
  SHARPI_TRY(call.entered());
  const size_t n_steps = std::min<size_t>(steps.size(), kMaxBatch);
  std::array<BatchRead, kMaxBatch> reads;
  std::array<SamplerMark, kMaxBatch> marks;
  std::array<int32_t, kMaxBatch> drawn{};
  for (size_t i = 0; i < n_steps; ++i) {
    reads[i].session = steps[i].session;
    marks[i] = state_of(*steps[i].session).drawer.sampler().mark();
  }
  const Status own = no_throw([&]() -> Status {
    SHARPI_TRY(check_with_ranks(steps, by));
    return link.is_last() ? draw_with_ranks(steps, by, drawn.data()) : Status::ok();
  });
  const RankVerdict all =
      agree(RankCall::kStep, {reads.data(), n_steps}, own, {drawn.data(), n_steps});
  const Tokenizer* text = steps[0].session->model().text()->tokenizer();
  size_t n = 0;  // sessions whose token does not end their generation
  for (size_t i = 0; all.status.is_ok() && i < n_steps; ++i) {
    if (text != nullptr && text->is_end_of_generation(all.tokens[i])) continue;
    reads[n].session = steps[i].session;
    reads[n++].tokens = {&all.tokens[i], 1};
  }
  Status done = all.status;
  if (done.is_ok() && n != 0) done = read_parts({reads.data(), n}, all.first_value, by);
  for (size_t i = 0; i < n_steps; ++i) {
    if (!done.is_ok()) {
      state_of(*steps[i].session).drawer.sampler().restore(marks[i]);
      continue;
    }
    steps[i].out[0] = all.tokens[i];
    steps[i].n = 1;
  }
  return done;
}

/// This rank's share of all parts, one behind the other.
Status SessionBatch::run_parts(std::span<const BatchRead> reads, const Caller& by, Parts* parts) {
  RankLine line(*reads[0].session->model().ranks());
  Status own;
  bool compute = false, more = true;
  for (uint32_t p = 0; more && p < parts->n; ++p) {
    const std::span<const BatchRead> part = parts->of(reads, p);
    const auto n_rows = static_cast<uint32_t>(part.size());
    SHARPI_TRY(line.take(n_rows, false, &compute));
    if (compute) own = no_throw([&] { return pass(part, by, &parts->rings_written[p]); });
    if (compute && own.is_ok()) parts->n_run = p + 1;
    SHARPI_TRY(line.give(n_rows, own, &more));
  }
  return own;
}

/// All sessions read their tokens, or none.
Status SessionBatch::read_parts(std::span<BatchRead> reads, int32_t n_parts, const Caller& by) {
  const auto start = Clock::now();
  const auto n = static_cast<uint32_t>(reads.size());
  std::array<uint32_t, kMaxBatch> lengths{};
  for (uint32_t i = 0; i < n; ++i)
    lengths[i] = state_of(*reads[i].session).core.ledger().n_tokens();
  Parts parts;
  parts.n = std::clamp(static_cast<uint32_t>(n_parts), 1u, n);
  cut_batch({lengths.data(), n}, parts.n, parts.ends.data());
  const Status own = no_throw([&] { return run_parts(reads, by, &parts); });
  const Status all = agree(RankCall::kPassEnd, reads, own).status;
  if (!all.is_ok()) {
    // What has failed elsewhere has failed here, too.
    const Status why = Status::error(Code::kDevice, "%s", all.text().c_str());
    for (uint32_t p = 0; p < parts.n_run; ++p) {
      for (const BatchRead& r : parts.of(reads, p))
        state_of(*r.session).runner.failed(why, 1, parts.rings_written[p]);
    }
    return all;
  }
  for (BatchRead& r : reads) {
    SessionState& s = state_of(*r.session);
    SHARPI_TRY(s.verifier.settle(r.tokens, r.params, start, &r.n_read));
  }
  return Status::ok();
}

}  // namespace sharpi
