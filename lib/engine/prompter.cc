// SPDX-License-Identifier: MIT
#include "engine/prompter.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/seconds.h"

namespace sharpi {

/// What a prompt's callback hears, and whether it has asked to stop.
class PromptProgress final : public PassProgress {
 public:
  PromptProgress(const sharpi_prefill_params& params, uint32_t n_layers, uint64_t total)
      : fn_(params.progress), user_data_(params.user_data), n_layers_(n_layers), total_(total) {}
  PassProgress* hook() { return fn_ == nullptr ? nullptr : this; }
  void begin_chunk(uint64_t done, uint64_t n) { done_ = done, n_ = n; }
  /// A chunk counts by the share of its layers; of the last one the chunk itself tells.
  bool layer_done(uint32_t layer) override {
    if (stopped_ || layer + 1 == n_layers_) return !stopped_;
    return report(done_ + n_ * (layer + 1) / n_layers_);
  }
  bool report(uint64_t done) {
    if (fn_ == nullptr || stopped_) return !stopped_;
    stopped_ = fn_(user_data_, SHARPI_PHASE_PREFILL, done, total_) != 0;
    return !stopped_;
  }
  bool stopped() const { return stopped_; }
  Status cancelled(uint64_t committed) const {
    return Status::error(
        Code::kCancelled, "the progress callback cancelled the call after %llu of %llu tokens",
        static_cast<unsigned long long>(committed), static_cast<unsigned long long>(total_));
  }

 private:
  const sharpi_progress_fn fn_;
  void* const user_data_;
  const uint32_t n_layers_;
  const uint64_t total_;
  uint64_t done_ = 0, n_ = 0;
  bool stopped_ = false;
};

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

Status Prompter::read(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                      uint32_t* out_committed) {
  *out_committed = 0;
  SHARPI_TRY(core_.begin_call());
  SHARPI_TRY(check(tokens, params));
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

/// A prompt on its way.
struct Prompter::Reading {
  std::span<const int32_t> tokens;
  const sharpi_prefill_params& params;
  uint32_t n_chunk;
  PromptProgress progress;
  uint32_t* out_committed;
  size_t done = 0;
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();

  size_t chunk_at(size_t at) const { return std::min<size_t>(n_chunk, tokens.size() - at); }
  PassRequest pass_at(size_t at) const {
    PassRequest pass;
    pass.tokens = tokens.subspan(at, chunk_at(at));
    pass.rows_to_end = static_cast<uint32_t>(tokens.size() - at - pass.tokens.size());
    pass.want_rows = params.n_logit_rows;
    return pass;
  }
  /// Tokens of the prompt that go through a pipeline with room for `room` of them, up to there:
  /// chunks that are read as they would be alone, and more than one.
  size_t end_of_pipeline(uint64_t room, const Model& model) const {
    size_t end = done;
    while (end < tokens.size() && end - done + chunk_at(end) <= room &&
           model.passes_under_way(static_cast<uint32_t>(chunk_at(end))) > 1)
      end += chunk_at(end);
    return end - done > chunk_at(done) ? end : done;
  }
};

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
