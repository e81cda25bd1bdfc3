// SPDX-License-Identifier: MIT
#include "engine/draft_mtp.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "plan/mtp_plan.h"

namespace sharpi {

Result<std::unique_ptr<MtpDrafter>> MtpDrafter::create(const MtpModel& model,
                                                       const SessionShape& shape,
                                                       uint32_t n_chunk) {
  std::unique_ptr<MtpDrafter> d(new MtpDrafter(model));
  SHARPI_TRY_ASSIGN(d->tier_, model.create_session(shape));
  d->rows_ = KvLedger(model.spec(), 0, 0);
  d->kv_budget_ = shape.kv_budget;
  d->queue_.resize(mtp_queue_rows(n_chunk) * d->n_embd_);
  d->last_.resize(d->n_embd_);
  d->checkpoints_.resize(shape.n_checkpoints * d->n_embd_);
  d->has_checkpoint_.resize(shape.n_checkpoints);
  if (shape.kv_budget != 0) d->kept_.resize(shape.capacity(n_chunk));
  return d;
}

uint64_t MtpDrafter::bytes() const {
  return (queue_.capacity() + last_.capacity() + checkpoints_.capacity()) * sizeof(float) +
         kept_.capacity() * sizeof(uint32_t);
}

std::vector<MemoryRow> MtpDrafter::memory_rows() const {
  return model_->as_own(tier_->memory_rows());
}

bool MtpDrafter::is_behind() const {
  return waiting_ > kMtpWaiting;
}

void MtpDrafter::drop_waiting(uint32_t n) noexcept {
  const auto first = queue_.begin() + static_cast<std::ptrdiff_t>(n * n_embd_);
  std::copy(first, queue_.begin() + static_cast<std::ptrdiff_t>(waiting_ * n_embd_),
            queue_.begin());
  waiting_ -= n;
}

void MtpDrafter::committed(std::span<const int32_t> tokens) noexcept {
  const bool has_row = waiting_ == 1 && drafted_ == tokens[0];
  drafted_ = -1;
  waiting_ += static_cast<uint32_t>(tokens.size());
  if (!has_row) return;
  rows_.commit(1);
  drop_waiting(1);
}

/// A bounded session keeps the last rows: what is far back has long been guessed from.
Status MtpDrafter::make_room(uint32_t n) {
  const uint32_t held = rows_.n_tokens(), most = capacity();
  if (kv_budget_ == 0 || held + n <= most) return Status::ok();
  if (n > most)
    return Status::error(Code::kInternal, "%u rows do not fit the %u rows of the MTP block", n,
                         most);
  const uint32_t kept = std::min(most - n, kv_budget_), gone = held - kept;
  std::iota(kept_.begin(), kept_.begin() + kept, gone);
  const KvMove move{0, {kept_.data(), 1, kept, kept}};
  if (kept != 0) {
    SHARPI_TRY(tier_->store().stage_moves({&move, 1}));
    tier_->store().apply_moves();
  }
  rows_.restart(rows_.base() + gone, kept);
  return Status::ok();
}

/// One pass over rows behind those that count.
Status MtpDrafter::run(std::span<const int32_t> tokens, const float* hidden, bool draft) {
  SequenceRows q;
  q.session = tier_.get();
  q.ledger = &rows_;
  q.n_rows = static_cast<uint32_t>(tokens.size());
  q.position = rows_.next_position();
  q.first_logit_row = draft ? q.n_rows - 1 : q.n_rows;
  q.n_best = draft ? 1 : 0;
  q.hidden = draft ? last_.data() : nullptr;
  q.first_hidden_row = q.n_rows - 1;
  Submission s;
  s.tokens = tokens.data();
  s.n_rows = q.n_rows;
  s.sequences = {&q, 1};
  s.hidden_in = hidden;
  return model_->run(s);
}

/// Tokens behind those of the first hidden rows that wait. As a draft the last one is scratch.
Status MtpDrafter::read(std::span<const int32_t> tokens, bool draft) {
  drafted_ = -1;
  while (!tokens.empty()) {
    const size_t n = std::min<size_t>(tokens.size(), model_->n_chunk());
    const bool last = draft && n == tokens.size();
    SHARPI_TRY(make_room(static_cast<uint32_t>(n)));
    SHARPI_TRY(run(tokens.first(n), queue_.data(), last));
    const auto stay = static_cast<uint32_t>(last ? n - 1 : n);
    rows_.commit(stay);
    drop_waiting(stay);
    tokens = tokens.subspan(n);
  }
  return Status::ok();
}

Status MtpDrafter::catch_up(std::span<const int32_t> history, uint64_t first) {
  if (waiting_ <= 1) return Status::ok();
  const uint64_t from = rows_.next_position() + 1 - first;
  return read(history.subspan(from, waiting_ - 1), false);
}

/// Of equal ones the first.
int32_t MtpDrafter::best(float* scratch, Status* status) const {
  if (tier_->max_best() != 0) {
    int32_t id = 0;
    *status = tier_->read_best(0, 1, nullptr, scratch, &id);
    return id;
  }
  *status = tier_->read_logits(0, scratch);
  return static_cast<int32_t>(std::max_element(scratch, scratch + model_->spec().n_vocab) -
                              scratch);
}

/// Drafts behind out[0], each from the hidden row that the block made of the one before.
Status MtpDrafter::draft_on(uint32_t n, float* scratch, int32_t* out) {
  for (uint32_t i = 1; i < n; ++i) {
    rows_.commit(1);
    SHARPI_TRY(run({out + i - 1, 1}, last_.data(), true));
    Status got;
    out[i] = best(scratch, &got);
    SHARPI_TRY(got);
  }
  return Status::ok();
}

Status MtpDrafter::propose(std::span<const int32_t> history, uint64_t first, int32_t next,
                           uint32_t most, float* scratch, int32_t* out, uint32_t* out_n) {
  *out_n = 0;
  std::array<int32_t, kMtpWaiting + 1> tokens;
  if (waiting_ == 0 || most == 0) return Status::ok();
  if (waiting_ > tokens.size() || waiting_ + most > capacity()) {
    SHARPI_TRY(catch_up(history, first));
  }
  most = std::min(most, capacity());
  SHARPI_TRY(make_room(waiting_ - 1 + most));
  const std::span<const int32_t> known = history.last(waiting_ - 1);
  std::copy(known.begin(), known.end(), tokens.begin());
  tokens[known.size()] = next;
  SHARPI_TRY(read({tokens.data(), known.size() + 1}, true));
  Status got;
  out[0] = best(scratch, &got);
  SHARPI_TRY(got);
  const uint64_t base = rows_.base();
  const uint32_t count = rows_.n_tokens();
  const Status done = draft_on(most, scratch, out);
  rows_.restart(base, count);
  SHARPI_TRY(done);
  drafted_ = next;
  *out_n = most;
  return Status::ok();
}

void MtpDrafter::restart(uint64_t n) noexcept {
  rows_.restart(n, 0);
  waiting_ = 0;
  drafted_ = -1;
}

void MtpDrafter::truncate(uint64_t n, int32_t checkpoint) noexcept {
  drafted_ = -1;
  const uint64_t base = rows_.base(), built = rows_.next_position();
  if (n > built) {  // their hidden rows still wait
    waiting_ = std::min(waiting_, static_cast<uint32_t>(n - built));
    return;
  }
  const auto slot = static_cast<size_t>(checkpoint);
  if (n == 0 || n <= base || checkpoint < 0 || has_checkpoint_[slot] == 0) return restart(n);
  rows_.restart(base, static_cast<uint32_t>(n - 1 - base));
  const auto at = checkpoints_.begin() + static_cast<std::ptrdiff_t>(slot * n_embd_);
  std::copy(at, at + static_cast<std::ptrdiff_t>(n_embd_), queue_.begin());
  waiting_ = 1;
}

void MtpDrafter::save_checkpoint(size_t index) noexcept {
  has_checkpoint_[index] = waiting_ != 0;
  if (waiting_ == 0) return;
  const auto last = queue_.begin() + static_cast<std::ptrdiff_t>((waiting_ - 1) * n_embd_);
  std::copy(last, last + static_cast<std::ptrdiff_t>(n_embd_),
            checkpoints_.begin() + static_cast<std::ptrdiff_t>(index * n_embd_));
}

Status MtpDrafter::copy_from(const MtpDrafter& from) {
  SHARPI_TRY(tier_->copy_from(*from.tier_, from.rows_.n_tokens()));
  rows_ = from.rows_;
  std::copy_n(from.queue_.begin(), from.waiting_ * n_embd_, queue_.begin());
  waiting_ = from.waiting_;
  std::copy(from.checkpoints_.begin(), from.checkpoints_.end(), checkpoints_.begin());
  has_checkpoint_ = from.has_checkpoint_;
  return Status::ok();
}

}  // namespace sharpi
