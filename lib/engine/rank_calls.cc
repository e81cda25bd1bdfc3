// SPDX-License-Identifier: MIT
#include "engine/rank_calls.h"

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

}  // namespace

Status RankCalls::refuse(const char* what) const {
  return are_needed() ? no_group(what) : Status::ok();
}

/// Masks and biases matter where the token is drawn, so other ranks need not have them.
Status RankCalls::check_draw(const sharpi_sample_params& params) {
  if (params.n_logprobs != 0) return no_group("n_logprobs");
  return params.meanwhile != nullptr ? no_group("a meanwhile function") : Status::ok();
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

/// The last rank draws for all.
Status RankCalls::draw(const sharpi_sample_params& params, int32_t* out) {
  SHARPI_TRY(check_draw(params));
  if (!core_.model->ranks()->is_last()) return Status::ok();
  return no_throw([&] { return drawer_.sample(params, out); });
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
