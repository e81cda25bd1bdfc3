// SPDX-License-Identifier: MIT
#include "engine/rank_calls.h"

#include <chrono>

#include "base/hash.h"
#include "base/no_throw.h"

namespace sharpi {
namespace {

Status no_group(const char* what) {
  return Status::error(Code::kUnsupported, "%s cannot be had with a group of processes", what);
}

uint64_t hash_of(std::span<const int32_t> tokens, const sharpi_prefill_params& p) {
  Hash64 hash;
  hash.add(tokens.data(), tokens.size_bytes());
  for (const uint32_t v : {p.flags, p.n_logit_rows, p.n_chunk}) hash.add_u64(v);
  return hash.value();
}

/// Masks and biases matter where the token is drawn, so other ranks need not have them.
Status check_draw(const sharpi_sample_params& params) {
  if (params.n_logprobs != 0) return no_group("n_logprobs");
  return params.meanwhile != nullptr ? no_group("a meanwhile function") : Status::ok();
}

}  // namespace

Status RankCalls::refuse(const char* what) const {
  return are_needed() ? no_group(what) : Status::ok();
}

Status RankCalls::check_has_logits() const {
  if (!are_needed() || core_.model->ranks()->is_last()) return Status::ok();
  return Status::error(Code::kUnsupported, "the logits are on rank %u, which has the head",
                       core_.model->ranks()->group().n_ranks() - 1);
}

RankVerdict RankCalls::agree(RankCall call, uint64_t arguments, const Status& own, int32_t value) {
  RankWord word;
  word.call = call;
  word.session = number_;
  word.n_tokens = core_.ledger().n_tokens();
  word.arguments = arguments;
  word.status = own;
  word.value = value;
  return core_.model->ranks()->agree(word);
}

Status RankCalls::prefill(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                          uint32_t* out_committed) {
  *out_committed = 0;
  RankLink& link = *core_.model->ranks();
  const GroupCall call(link.group());
  SHARPI_TRY(call.entered());
  Status own = no_throw([&]() -> Status {
    if ((params.flags & SHARPI_PREFILL_CHECKPOINT) != 0) return no_group("PREFILL_CHECKPOINT");
    return prompter_.begin(tokens, params);
  });
  RankWord word;
  word.n_tokens = core_.ledger().n_tokens();
  SHARPI_TRY(agree(RankCall::kPrefill, hash_of(tokens, params), own).status);
  own = no_throw([&] { return prompter_.read_share(tokens, params, out_committed); });
  word.call = RankCall::kPrefillEnd;
  word.session = number_;
  word.status = own;
  word.n_done = *out_committed;
  const RankVerdict all = link.agree(word);
  if (link.group().is_lost()) return all.status;
  if (all.n_done < *out_committed) go_back(word.n_tokens + all.n_done);
  *out_committed = all.n_done;
  return all.status;
}

/// Other ranks have committed less. What cannot go back is as long as theirs all the same, and says
/// that it is not whole: windows by themselves.
void RankCalls::go_back(uint32_t n_tokens) {
  const Status back = no_throw([&] { return checkpoints_.truncate(n_tokens); });
  if (back.is_ok()) return;
  core_.transcript.take_back(n_tokens);
  if (core_.spec().is_hybrid()) core_.transcript.lose_state();
}

Status RankCalls::can_read(std::span<const int32_t> tokens) {
  SHARPI_TRY(core_.begin_call());
  SHARPI_TRY(core_.check_tokens(tokens));
  return bounded_.check_room(1);
}

Status RankCalls::decode(int32_t token) {
  const GroupCall call(core_.model->ranks()->group());
  SHARPI_TRY(call.entered());
  const Status own = no_throw([&] { return can_read({&token, 1}); });
  SHARPI_TRY(agree(RankCall::kDecode, static_cast<uint32_t>(token), own).status);
  return read(token);
}

/// The last rank draws for all.
Status RankCalls::draw(const sharpi_sample_params& params, int32_t* out) {
  SHARPI_TRY(check_draw(params));
  if (!core_.model->ranks()->is_last()) return Status::ok();
  return no_throw([&] { return drawer_.sample(params, out); });
}

Status RankCalls::step(const sharpi_sample_params& params, std::span<int32_t> out,
                       uint32_t* out_n) {
  *out_n = 0;
  const GroupCall call(core_.model->ranks()->group());
  SHARPI_TRY(call.entered());
  const SamplerMark mark = drawer_.sampler().mark();
  int32_t drawn = 0;
  Status own = out.empty() ? Status::error(Code::kBufferTooSmall, "%s",
                                           "cap is 0, but a step gives at least one token")
                           : no_throw([&] { return can_read({}); });
  if (own.is_ok()) own = draw(params, &drawn);
  const RankVerdict all = agree(RankCall::kStep, 0, own, drawn);
  Status done = all.status;
  if (done.is_ok()) {
    const Tokenizer* text = core_.model->text()->tokenizer();
    const bool ends = text != nullptr && text->is_end_of_generation(all.value);
    if (!ends) done = read(all.value);
  }
  if (!done.is_ok()) {
    drawer_.sampler().restore(mark);
    return done;
  }
  out[0] = all.value;
  *out_n = 1;
  return Status::ok();
}

Status RankCalls::sample(const sharpi_sample_params& params, int32_t* out) {
  const GroupCall call(core_.model->ranks()->group());
  SHARPI_TRY(call.entered());
  const SamplerMark mark = drawer_.sampler().mark();
  int32_t drawn = 0;
  const Status own = draw(params, &drawn);
  const RankVerdict all = agree(RankCall::kSample, 0, own, drawn);
  if (!all.status.is_ok()) {
    drawer_.sampler().restore(mark);
    return all.status;
  }
  *out = all.value;
  return Status::ok();
}

/// This rank's share of the pass; *ran = it was computed.
Status RankCalls::pass(int32_t token, bool* rings_written, bool* ran) {
  RankLink& link = *core_.model->ranks();
  RowsState state = RowsState::kRows;
  Status own;
  if (!link.is_first()) SHARPI_TRY(link.receive(1, &state));
  if (state == RowsState::kRows) {
    PassRequest one;
    one.tokens = {&token, 1};
    one.want_rows = 1;
    own = runner_.run(one, rings_written);
    *ran = own.is_ok();
  }
  if (!link.is_last()) SHARPI_TRY(link.send(1, own.is_ok() ? state : RowsState::kFailed));
  return own;
}

Status RankCalls::read(int32_t token) {
  const auto start = std::chrono::steady_clock::now();
  bool rings_written = false, ran = false;
  const Status own = no_throw([&] { return pass(token, &rings_written, &ran); });
  const Status all = agree(RankCall::kPassEnd, 0, own).status;
  if (!all.is_ok()) {
    // Elsewhere it has failed, so here, too: what runner_.run() says of one that failed here.
    if (ran)
      runner_.failed(Status::error(Code::kDevice, "%s", all.text().c_str()), 1, rings_written);
    return all;
  }
  uint32_t n = 0;
  return verifier_.settle({&token, 1}, default_sample_params(), start, &n);
}

Status RankCalls::truncate(uint32_t n_tokens) {
  const GroupCall call(core_.model->ranks()->group());
  SHARPI_TRY(call.entered());
  const Status can = no_throw([&] { return checkpoints_.check(n_tokens); });
  RankWord word;
  word.call = RankCall::kTruncateEnd;
  word.session = number_;
  word.n_tokens = core_.ledger().n_tokens();
  SHARPI_TRY(agree(RankCall::kTruncate, n_tokens, can).status);
  word.status = no_throw([&] { return checkpoints_.truncate(n_tokens); });
  return core_.model->ranks()->agree(word).status;
}

}  // namespace sharpi
