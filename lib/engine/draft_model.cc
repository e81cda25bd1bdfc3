// SPDX-License-Identifier: MIT
#include "engine/draft_model.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "base/limits.h"
#include "engine/sampler.h"
#include "engine/seconds.h"
#include "engine/session.h"
#include "plan/drafter_plan.h"

namespace sharpi {

ModelDrafter::~ModelDrafter() = default;

Result<std::unique_ptr<ModelDrafter>> ModelDrafter::create(const Model& whole,
                                                           const SessionShape& shape) {
  std::unique_ptr<ModelDrafter> d(new ModelDrafter);
  const auto plan = make_draft_plan(whole.context().sizers(), whole.plan(), shape);
  SHARPI_TRY_ASSIGN(d->session_, Session::create(whole.draft(), plan->session));
  sharpi_sampler_params greedy = default_sampler_params();
  greedy.temperature = 0;
  SHARPI_TRY(d->session_->set_sampler(greedy));
  d->whole_ = whole.plan().spec;
  d->n_ctx_ = plan->session.n_ctx;
  d->is_hybrid_ = plan->spec->is_hybrid();
  return d;
}

std::vector<MemoryRow> ModelDrafter::memory_rows() const {
  std::vector<MemoryRow> rows = session_->memory_rows();
  for (MemoryRow& r : rows) r = draft_row(r, *whole_);
  return rows;
}

size_t ModelDrafter::n_tokens() const {
  return session_->tokens().size();
}

void ModelDrafter::cancel() noexcept {
  session_->cancel();
}

void ModelDrafter::resume() noexcept {
  session_->resume();
}

/// Chooses the token of the session at which the draft model's own text begins: the first one if
/// all tokens fit its rows, otherwise the one that leaves half of its rows free.
void ModelDrafter::choose_beginning(uint64_t n_history, uint64_t base, uint32_t most) {
  const uint64_t moved = base > base_ ? base - base_ : 0;
  first_ = first_ > moved ? first_ - moved : 0;
  base_ = base;
  const auto fits = [&](uint64_t first) { return n_history - first + 1 + most <= n_ctx_; };
  if (first_ <= n_history && fits(first_)) return;
  first_ = fits(0) ? 0 : n_history - std::min<uint64_t>(n_history, n_ctx_ / 2);
}

/// Truncates its own tokens to their common beginning with the text.
Status ModelDrafter::cut_back(std::span<const int32_t> text) {
  if (!session_->is_whole()) text = {};
  const std::span<const int32_t> own = session_->tokens();
  const auto parted = std::mismatch(own.begin(), own.end(), text.begin(), text.end()).first;
  const auto same = static_cast<uint32_t>(parted - own.begin());
  if (same == own.size()) return Status::ok();
  const uint32_t to = !is_hybrid_ ? same : checkpoint_ <= same ? checkpoint_ : 0;
  Status done = session_->truncate(to);
  if (done.code() == Code::kState) done = session_->truncate(0);  // further than a window reaches
  if (session_->tokens().empty()) checkpoint_ = 0;
  return done;
}

Status ModelDrafter::read(std::span<const int32_t> tokens) {
  if (tokens.size() == 1) return session_->decode(tokens[0]);
  sharpi_prefill_params params{};
  params.struct_size = sizeof params;
  params.n_logit_rows = 1;
  uint32_t n = 0;
  return session_->prefill(tokens, params, &n);
}

/// The rest of the text and `next`. Recurrent layers keep the state behind that.
Status ModelDrafter::read_up_to(std::span<const int32_t> text, int32_t next, Drafted* out) {
  std::array<int32_t, kMaxDraft + 2> tokens;
  std::span<const int32_t> rest = text.subspan(session_->tokens().size());
  if (rest.size() >= tokens.size()) {
    const auto start = std::chrono::steady_clock::now();
    SHARPI_TRY(read(rest));
    out->lag = static_cast<uint32_t>(rest.size());
    out->behind = seconds_since(start);
    rest = {};
  }
  std::copy(rest.begin(), rest.end(), tokens.begin());
  tokens[rest.size()] = next;
  SHARPI_TRY(read({tokens.data(), rest.size() + 1}));
  if (!is_hybrid_) return Status::ok();
  SHARPI_TRY(session_->checkpoint(false));
  checkpoint_ = static_cast<uint32_t>(session_->tokens().size());
  return Status::ok();
}

/// One by one; none behind the end of a generation.
Status ModelDrafter::draft_on(uint32_t most, int32_t* out, uint32_t* out_n) {
  const Tokenizer* text = session_->model().text()->tokenizer();
  for (uint32_t i = 0; i < most; ++i) {
    if (i != 0) SHARPI_TRY(session_->decode(out[i - 1]));
    const Status drawn = session_->sample(default_sample_params(), &out[i]);
    // Without a number among its logits the smaller model is damaged, and has nothing to offer.
    if (drawn.code() == Code::kFormat || drawn.code() == Code::kMismatch) break;
    SHARPI_TRY(drawn);
    if (text != nullptr && text->is_end_of_generation(out[i])) break;
    *out_n = i + 1;
  }
  return Status::ok();
}

Status ModelDrafter::propose(std::span<const int32_t> history, uint64_t base, int32_t next,
                             uint32_t most, int32_t* drafts, Drafted* out) {
  out->n = out->lag = 0;
  out->behind = 0;
  most = std::min(most, n_ctx_ - n_ctx_ / 2 - 1);
  if (most == 0) return Status::ok();
  choose_beginning(history.size(), base, most);
  const std::span<const int32_t> text = history.subspan(first_);
  Status done = cut_back(text);
  if (done.is_ok()) done = read_up_to(text, next, out);
  if (done.is_ok()) done = draft_on(most, drafts, &out->n);
  if (!done.is_ok()) out->n = 0;
  return done;
}

}  // namespace sharpi
