// SPDX-License-Identifier: MIT
#include "engine/transcript.h"

#include <algorithm>

namespace sharpi {

void Transcript::begin(KvLedger empty, uint32_t n_ctx) {
  ledger_ = std::move(empty);
  tokens_.clear();
  tokens_.reserve(n_ctx);
  n_tried_ = n_other_ = 0;
  logit_rows_ = {};
}

Status Transcript::check() const {
  const uint32_t n = ledger_.n_tokens();
  if (tokens_.size() != n || n_tried_ != 0) {
    return Status::error(Code::kInternal,
                         "the session has %zu tokens, %u of them tried, but counts %u",
                         tokens_.size(), n_tried_, n);
  }
  for (uint32_t l = 0; l < ledger_.n_layers(); ++l) {
    if (!ledger_.is_full_owner(l)) continue;
    const LayerRows& r = ledger_.rows(l);
    if (r.n_compacted <= r.n_slots && r.tail_position <= n &&
        r.n_slots - r.n_compacted == n - r.tail_position)
      continue;
    return Status::error(Code::kInternal,
                         "layer %u has %u rows, %u of them compacted, of %u tokens from %u on", l,
                         r.n_slots, r.n_compacted, n, r.tail_position);
  }
  if (logit_rows_.n == 0 || n != 0) return Status::ok();
  return Status::error(Code::kInternal, "there are logits, but no token was read");
}

void Transcript::commit(std::span<const int32_t> tokens, uint32_t n_logit_rows) noexcept {
  ledger_.commit(static_cast<uint32_t>(tokens.size()));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  logit_rows_ = {n_logit_rows, 0};
}

void Transcript::try_token(int32_t token, uint32_t row) noexcept {
  tokens_.push_back(token);
  ++n_tried_;
  logit_rows_ = {1, row};
}

void Transcript::commit_tried() noexcept {
  ledger_.commit(n_tried_);
  n_tried_ = 0;
}

void Transcript::take_back_tried() noexcept {
  tokens_.resize(ledger_.n_tokens());
  n_tried_ = 0;
  logit_rows_ = {};
}

void Transcript::fail(uint32_t n_rows, bool rings_written, uint32_t n_spare) noexcept {
  take_back_tried();
  ledger_.spoil_capture(n_rows);
  if (rings_written) ledger_.spoil_rings(n_rows, n_spare);
}

void Transcript::take_back(uint32_t n_tokens) noexcept {
  ledger_.truncate(n_tokens);
  tokens_.resize(n_tokens);
  n_other_ = std::min(n_other_, n_tokens);
  n_tried_ = 0;
  logit_rows_ = {};
  state_lost_ = false;
}

void Transcript::compact(std::span<const KvMove> moves) noexcept {
  for (const KvMove& m : moves) {
    ledger_.set_compacted(m.layer, m.keep);
    if (m.by_head) ledger_.set_by_head();
  }
}

void Transcript::shift_context(uint32_t shift) noexcept {
  ledger_.rebase(shift);
  tokens_.erase(tokens_.begin(), tokens_.begin() + shift);
  n_other_ -= std::min(n_other_, shift);
}

void Transcript::copy_from(const Transcript& from) {
  ledger_ = from.ledger_;
  state_lost_ = from.state_lost_;
  tokens_.assign(from.tokens_.begin(), from.tokens_.end());
  logit_rows_ = from.logit_rows_;
  n_other_ = from.n_other_;
}

}  // namespace sharpi
