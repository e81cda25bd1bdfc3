// SPDX-License-Identifier: MIT
#include "engine/drafters.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/no_throw.h"
#include "engine/seconds.h"
#include "engine/session.h"
#include "plan/drafter_plan.h"
#include "plan/session_plan.h"

namespace sharpi {

Status Drafters::create() {
  const SessionShape& shape = core_.shape;
  if ((shape.drafters & SHARPI_DRAFT_NGRAM) != 0)
    ngram_ = std::make_unique<NgramDrafter>(shape.n_ctx);
  if ((shape.drafters & SHARPI_DRAFT_MTP) != 0) {
    SHARPI_TRY_ASSIGN(mtp_, MtpDrafter::create(*core_.model->mtp(), shape, core_.limits().n_chunk));
  }
  if (has_draft_model(core_.model->plan(), shape)) {
    SHARPI_TRY_ASSIGN(draft_model_, ModelDrafter::create(*core_.model, shape));
  }
  draft_stats_.drafters = shape.drafters;
  return Status::ok();
}

void Drafters::count(uint32_t n_drafts, uint32_t n_accepted, double seconds) {
  ++draft_stats_.n_passes;
  draft_stats_.n_drafted += n_drafts;
  draft_stats_.n_accepted += n_accepted;
  draft_stats_.verify_seconds += seconds;
  for (uint32_t i = 0; i < n_drafts; ++i) {
    ++draft_places_[i].drafted;
    if (i < n_accepted) ++draft_places_[i].accepted;
  }
}

Status Drafters::propose(int32_t next, const sharpi_sample_params& params, uint32_t most,
                         float* scratch, int32_t* drafts, Drafted* out) {
  most = std::min(most, core_.shape.n_draft);
  if (most == 0 || params.allowed_mask != nullptr) return Status::ok();
  if (ngram_ == nullptr && mtp_ == nullptr && draft_model_ == nullptr) return Status::ok();
  const auto start = std::chrono::steady_clock::now();
  const Status done = no_throw([&] { return propose_any(next, most, scratch, drafts, out); });
  draft_stats_.draft_seconds += seconds_since(start);
  return done;
}

/// The first drafter that has something to offer that pays.
Status Drafters::propose_any(int32_t next, uint32_t most, float* scratch, int32_t* drafts,
                             Drafted* out) {
  if (ngram_ != nullptr) {
    uint32_t match = 0;
    uint32_t n = ngram_->propose(core_.tokens(), next, most, drafts, &match);
    if (n != 0) n = pace_.choose(match, n);
    *out = {n, SHARPI_DRAFT_NGRAM, match};
    if (n != 0) return Status::ok();
  }
  return propose_by_model(next, most, scratch, drafts, out);
}

/// Drafts of a model cost time before anybody sees them, so their number is chosen first.
Status Drafters::propose_by_model(int32_t next, uint32_t most, float* scratch, int32_t* drafts,
                                  Drafted* out) {
  const std::span<const int32_t> history = core_.tokens();
  const uint64_t room = core_.room_of_pass();
  most = static_cast<uint32_t>(std::min<uint64_t>(most, room > 1 ? room - 1 : 0));
  if (most == 0) return Status::ok();
  if (mtp_ != nullptr) {
    const uint32_t n = mtp_pace_.choose(DraftPace::kOfModel, most);
    *out = {0, SHARPI_DRAFT_MTP, DraftPace::kOfModel};
    SHARPI_TRY(mtp_->propose(history, core_.ledger().base(), next, n, scratch, drafts, &out->n));
    if (out->n != 0) return Status::ok();
  }
  if (draft_model_ == nullptr) return Status::ok();
  const uint64_t lag = history.size() - std::min(history.size(), draft_model_->n_tokens());
  const uint32_t n = model_pace_.choose(DraftPace::kOfModel, most, lag);
  *out = {0, SHARPI_DRAFT_MODEL, DraftPace::kOfModel};
  if (n == 0) return Status::ok();
  const Status done = draft_model_->propose(history, core_.ledger().base(), next, n, drafts, out);
  // A cancel reaches the session first. One that only its drafter sees was answered by a call
  // before.
  if (done.code() != Code::kCancelled || core_.cancelled.load()) return done;
  draft_model_->resume();
  return Status::ok();
}

void Drafters::learn_shared(const Drafted& drafts, uint32_t n_read, const TimedPass& pass,
                            double own_seconds) {
  shared_pass_.took(pass.n_rows, pass.seconds);
  const double price =
      shared_pass_.price(pass.n_sessions, pass.n_rows, pass.seconds, drafts.n + 1, own_seconds);
  learn(drafts, n_read, price, pass.n_sessions);
}

/// `seconds`: the price of a step in the company of n_sessions, this one included.
void Drafters::learn(const Drafted& drafts, uint32_t n_read, double seconds, uint32_t n_sessions) {
  const std::pair<uint32_t, DraftPace&> all[] = {{SHARPI_DRAFT_NGRAM, pace_},
                                                 {SHARPI_DRAFT_MTP, mtp_pace_},
                                                 {SHARPI_DRAFT_MODEL, model_pace_}};
  const double factor = shared_pass_.enter(n_sessions);
  for (const auto& [by, pace] : all) {
    pace.rescale(factor);
    if ((core_.shape.drafters & by) == 0) continue;
    if (drafts.n != 0 && drafts.by != by) continue;
    if (drafts.n != 0) pace.verified(drafts.match, drafts.n, n_read - 1);
    pace.took(drafts, n_read, seconds);
  }
}

Status Drafters::catch_up() {
  if (mtp_ == nullptr) return Status::ok();
  return no_throw([&] { return mtp_->catch_up(core_.tokens(), core_.ledger().base()); });
}

Status Drafters::take_hidden(SequenceRows* rows) {
  if (mtp_ == nullptr) return Status::ok();
  if (mtp_->is_behind()) SHARPI_TRY(catch_up());
  rows->hidden = mtp_->hidden_rows();
  return Status::ok();
}

float* Drafters::hidden_rows() noexcept {
  if (mtp_ == nullptr) return nullptr;
  if (mtp_->is_behind()) mtp_->restart(core_.ledger().next_position());
  return mtp_->hidden_rows();
}

void Drafters::committed(std::span<const int32_t> tokens) noexcept {
  if (mtp_ != nullptr) mtp_->committed(tokens);
}

void Drafters::truncated(uint32_t n_tokens, int32_t checkpoint) noexcept {
  if (ngram_ != nullptr) ngram_->truncate(n_tokens);
  if (mtp_ != nullptr) mtp_->truncate(core_.ledger().next_position(), checkpoint);
}

void Drafters::rebased() noexcept {
  if (ngram_ != nullptr) ngram_->truncate(0);
}

void Drafters::restart(uint64_t next) noexcept {
  if (ngram_ != nullptr) ngram_->truncate(0);
  if (mtp_ != nullptr) mtp_->restart(next);
}

void Drafters::save_checkpoint(size_t index) noexcept {
  if (mtp_ != nullptr) mtp_->save_checkpoint(index);
}

Status Drafters::copy_from(const Drafters& from) {
  return mtp_ == nullptr ? Status::ok() : mtp_->copy_from(*from.mtp_);
}

/// Cancels the draft model's session too, because that computes within calls on this session.
void Drafters::cancel() noexcept {
  if (draft_model_ != nullptr) draft_model_->cancel();
}

void Drafters::resume() noexcept {
  if (draft_model_ != nullptr) draft_model_->resume();
}

void Drafters::add_totals(KvTotals* totals) const {
  if (mtp_ != nullptr) {
    const KvStore& kv = mtp_->tier().store();
    totals->held += kv.held_bytes(0);
    totals->payload += kv.layout().groups[0].payload_bytes(mtp_->rows().n_tokens());
  }
  if (draft_model_ != nullptr) {
    const KvTotals own = draft_model_->session().kv_totals();
    totals->held += own.held;
    totals->payload += own.payload;
  }
}

void Drafters::add_memory(std::vector<MemoryRow>* rows, EngineBytes* bytes) const {
  if (mtp_ != nullptr) {
    for (const MemoryRow& r : mtp_->memory_rows()) rows->push_back(r);
    bytes->mtp_queue = mtp_->bytes();
  }
  if (draft_model_ != nullptr) {
    for (const MemoryRow& r : draft_model_->memory_rows()) rows->push_back(r);
  }
  if (ngram_ != nullptr) bytes->ngram_index = ngram_->bytes();
}

}  // namespace sharpi
