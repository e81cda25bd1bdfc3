// SPDX-License-Identifier: MIT
// Reading a prompt: chunk by chunk, with progress, to whole committed chunks.
#include <algorithm>
#include <chrono>

#include "base/no_throw.h"
#include "engine/seconds.h"
#include "engine/session.h"

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

Status Session::prefill(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                        uint32_t* out_committed) {
  return end_call(no_throw([&] { return read_prompt(tokens, params, out_committed); }));
}

Status Session::read_prompt(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                            uint32_t* out_committed) {
  *out_committed = 0;
  SHARPI_TRY(begin_call());
  SHARPI_TRY(check_tokens(tokens));
  const ModelShape& shape = model_->plan().model;
  if (params.n_logit_rows > shape.max_logit_rows) {
    return Status::error(Code::kInvalidArgument,
                         "n_logit_rows is %u, but the plan's max_logit_rows is %u",
                         params.n_logit_rows, shape.max_logit_rows);
  }
  if (params.n_logit_rows > tokens.size()) {
    return Status::error(Code::kInvalidArgument, "n_logit_rows is %u, but there are %zu tokens",
                         params.n_logit_rows, tokens.size());
  }
  if (params.n_chunk > shape.n_chunk) {
    return Status::error(Code::kInvalidArgument, "n_chunk is %u, but the plan's n_chunk is %u",
                         params.n_chunk, shape.n_chunk);
  }
  SHARPI_TRY(check_room(tokens.size()));
  const bool take_checkpoint = (params.flags & SHARPI_PREFILL_CHECKPOINT) != 0;
  if (take_checkpoint) SHARPI_TRY(check_takes_checkpoints(ledger_.n_tokens() + tokens.size()));
  SHARPI_TRY(prepare_look_ahead(tokens));
  prompt_end_ = ledger_.next_position() + tokens.size();
  const Status read = read_chunks(tokens, params, out_committed);
  look_ahead_ = 0;
  prompt_end_ = 0;
  SHARPI_TRY(read);
  if (take_checkpoint) SHARPI_TRY(checkpoint(false));
  if ((params.flags & SHARPI_PREFILL_MORE) == 0) SHARPI_TRY(compact_after_prompt());
  return Status::ok();
}

Status Session::read_chunks(std::span<const int32_t> tokens, const sharpi_prefill_params& params,
                            uint32_t* out_committed) {
  const uint32_t n_chunk = params.n_chunk != 0 ? params.n_chunk : model_->plan().model.n_chunk;
  PromptProgress progress(params, model_->spec().n_layers(), tokens.size());
  size_t done = 0;
  while (done < tokens.size()) {
    if (is_cancelled()) {
      return Status::error(Code::kCancelled, "the call was cancelled after %zu of %zu tokens", done,
                           tokens.size());
    }
    const auto start = std::chrono::steady_clock::now();
    const size_t n = std::min<size_t>(n_chunk, tokens.size() - done);
    const auto chunk = tokens.subspan(done, n);
    SHARPI_TRY(make_room(n));
    progress.begin_chunk(done, n);
    const Status ran = run_chunk(chunk, static_cast<uint32_t>(tokens.size() - done - n),
                                 params.n_logit_rows, nullptr, false, progress.hook());
    if (ran.code() == Code::kCancelled && progress.stopped()) return progress.cancelled(done);
    SHARPI_TRY(ran);
    commit(chunk);
    done += n;
    *out_committed = static_cast<uint32_t>(done);
    n_prefill_ += n;
    prefill_seconds_ += seconds_since(start);
    n_logit_rows_ = done == tokens.size() ? params.n_logit_rows : 0;
    SHARPI_TRY(catch_up());
    if (!progress.report(done) && done < tokens.size()) return progress.cancelled(done);
  }
  return Status::ok();
}

}  // namespace sharpi
