// SPDX-License-Identifier: MIT
#include "engine/prompter.h"

#include <chrono>
#include <utility>

#include "engine/prompt_reading.h"
#include "engine/seconds.h"

namespace sharpi {

Status Prompter::check(std::span<const int32_t> tokens, const sharpi_prefill_params& params) const {
  SHARPI_TRY(core_.check_tokens(tokens));
  const ModelShape& limits = core_.limits();
  if (params.n_logit_rows > limits.max_logit_rows) {
    return Status::error(Code::kInvalidArgument,
                         "n_logit_rows is %u, but the plan's max_logit_rows is %u",
                         params.n_logit_rows, limits.max_logit_rows);
  }
  if (params.n_logit_rows > tokens.size()) {
    return Status::error(Code::kInvalidArgument, "n_logit_rows is %u, but there are %zu tokens",
                         params.n_logit_rows, tokens.size());
  }
  if (params.n_chunk > limits.n_chunk) {
    return Status::error(Code::kInvalidArgument, "n_chunk is %u, but the plan's n_chunk is %u",
                         params.n_chunk, limits.n_chunk);
  }
  SHARPI_TRY(bounded_.check_room(tokens.size()));
  const bool take_checkpoint = (params.flags & SHARPI_PREFILL_CHECKPOINT) != 0;
  return take_checkpoint ? checkpoints_.check_takes(core_.ledger().n_tokens() + tokens.size())
                         : Status::ok();
}

Status Prompter::begin(std::span<const int32_t> tokens, const sharpi_prefill_params& params) {
  SHARPI_TRY(core_.begin_call());
  return check(tokens, params);
}

Status Prompter::read(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                      uint32_t* out_committed) {
  *out_committed = 0;
  SHARPI_TRY(begin(tokens, params));
  {
    const struct EndOfPrompt {
      BoundedKeeper& bounded;
      ~EndOfPrompt() { bounded.end_prompt(); }
    } end{bounded_};
    SHARPI_TRY(bounded_.begin_prompt(tokens));
    SHARPI_TRY(read_chunks(tokens, params, out_committed));
  }
  if ((params.flags & SHARPI_PREFILL_CHECKPOINT) != 0) SHARPI_TRY(checkpoints_.make(false));
  return (params.flags & SHARPI_PREFILL_MORE) == 0 ? bounded_.compact_after_prompt() : Status::ok();
}

Status Prompter::read_chunks(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                             uint32_t* out_committed) {
  const uint32_t n_chunk = params.n_chunk != 0 ? params.n_chunk : core_.limits().n_chunk;
  Reading r{
      tokens, params, n_chunk, {params, core_.spec().n_layers(), tokens.size()}, out_committed};
  while (r.done < tokens.size()) {
    if (core_.is_cancelled()) {
      return Status::error(Code::kCancelled, "the call was cancelled after %zu of %zu tokens",
                           r.done, tokens.size());
    }
    r.start = std::chrono::steady_clock::now();
    const size_t end = r.end_of_pipeline(runner_.room_of_pipeline(n_chunk), *core_.model);
    SHARPI_TRY(end == r.done ? read_chunk(&r) : read_pipelined(&r, end));
    if (r.progress.stopped() && r.done < tokens.size()) return r.progress.cancelled(r.done);
  }
  return Status::ok();
}

/// The next n tokens were read.
void Prompter::commit(Reading* r, size_t n) {
  const auto chunk = r->tokens.subspan(r->done, n);
  r->done += n;
  runner_.commit(chunk, r->done == r->tokens.size() ? r->params.n_logit_rows : 0);
  *r->out_committed = static_cast<uint32_t>(r->done);
  n_read_ += n;
  seconds_ += seconds_since(r->start);
  r->start = std::chrono::steady_clock::now();
}

Status Prompter::read_chunk(Reading* r) {
  PassRequest pass = r->pass_at(r->done);
  SHARPI_TRY(bounded_.make_room(pass.tokens.size()));
  r->progress.begin_chunk(r->done, pass.tokens.size());
  pass.progress = r->progress.hook();
  const Status ran = runner_.run(pass);
  if (ran.code() == Code::kCancelled && r->progress.stopped())
    return r->progress.cancelled(r->done);
  SHARPI_TRY(ran);
  commit(r, pass.tokens.size());
  SHARPI_TRY(drafters_.catch_up());
  (void)r->progress.report(r->done);
  return Status::ok();
}

/// Chunks up to `end`, or to one that is cancelled, that fails, or in front of which another call
/// wants to compute. What was given to the devices is read and committed.
Status Prompter::read_pipelined(Reading* r, size_t end) {
  Pipeline pipeline(*core_.model, core_.tier_list, r->n_chunk);
  size_t given = r->done, n_failed = 0;
  Status failed;
  bool rings_written = false, rings_of_failed = false;
  while (true) {
    while (given < end && !pipeline.is_full() && !core_.is_cancelled() && !r->progress.stopped()) {
      const PassRequest pass = r->pass_at(given);
      failed = runner_.start(pass, &pipeline, &rings_of_failed);
      if (failed.is_ok()) {
        given += pass.tokens.size();
        rings_written |= std::exchange(rings_of_failed, false);
      } else {
        n_failed = pass.tokens.size();
      }
      if (n_failed != 0 || pipeline.is_wanted()) end = given;
    }
    if (pipeline.is_empty()) break;
    const size_t n = r->chunk_at(r->done);
    const Status ended = runner_.finish(&pipeline);
    if (!ended.is_ok()) {
      runner_.failed_under_way(ended, static_cast<uint32_t>(n),
                               static_cast<uint32_t>(given - r->done), rings_written);
      return ended;
    }
    commit(r, n);
    const Status caught_up = drafters_.catch_up();
    if (!caught_up.is_ok() && failed.is_ok()) {
      failed = caught_up;
      end = given;
    }
    (void)r->progress.report(r->done);
  }
  if (n_failed != 0) runner_.failed(failed, static_cast<uint32_t>(n_failed), rings_of_failed);
  return failed;
}

}  // namespace sharpi
