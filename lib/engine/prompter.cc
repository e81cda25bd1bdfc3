// SPDX-License-Identifier: MIT
#include "engine/prompter.h"

#include <algorithm>
#include <chrono>

#include "engine/seconds.h"

namespace sharpi {
namespace {

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

}  // namespace

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

Status Prompter::read_chunks(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                             uint32_t* out_committed) {
  const uint32_t n_chunk = params.n_chunk != 0 ? params.n_chunk : core_.limits().n_chunk;
  PromptProgress progress(params, core_.spec().n_layers(), tokens.size());
  size_t done = 0;
  while (done < tokens.size()) {
    if (core_.is_cancelled()) {
      return Status::error(Code::kCancelled, "the call was cancelled after %zu of %zu tokens", done,
                           tokens.size());
    }
    const auto start = std::chrono::steady_clock::now();
    const size_t n = std::min<size_t>(n_chunk, tokens.size() - done);
    const auto chunk = tokens.subspan(done, n);
    SHARPI_TRY(bounded_.make_room(n));
    progress.begin_chunk(done, n);
    PassRequest pass;
    pass.tokens = chunk;
    pass.rows_to_end = static_cast<uint32_t>(tokens.size() - done - n);
    pass.want_rows = params.n_logit_rows;
    pass.progress = progress.hook();
    const Status ran = runner_.run(pass);
    if (ran.code() == Code::kCancelled && progress.stopped()) return progress.cancelled(done);
    SHARPI_TRY(ran);
    done += n;
    runner_.commit(chunk, done == tokens.size() ? params.n_logit_rows : 0);
    *out_committed = static_cast<uint32_t>(done);
    n_read_ += n;
    seconds_ += seconds_since(start);
    SHARPI_TRY(drafters_.catch_up());
    if (!progress.report(done) && done < tokens.size()) return progress.cancelled(done);
  }
  return Status::ok();
}

}  // namespace sharpi
