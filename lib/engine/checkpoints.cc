// SPDX-License-Identifier: MIT
#include "engine/checkpoints.h"

#include <algorithm>
#include <string>

namespace sharpi {

void Checkpoints::create() {
  all_.resize(core_.shape.n_checkpoints);
  logits_.resize(uint64_t{core_.shape.n_checkpoints} * core_.spec().n_vocab);
}

std::vector<uint32_t> Checkpoints::reachable() const {
  std::vector<uint32_t> out;
  const KvLedger& ledger = core_.ledger();
  const uint32_t n = ledger.n_tokens();
  const uint32_t floor = std::max(ledger.ring_floor(), ledger.evicted_floor());
  if (core_.spec().is_hybrid()) {
    for (const Checkpoint& c : all_) {
      if (c.used && c.n_tokens >= floor && c.n_tokens != n) out.push_back(c.n_tokens);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
  } else if (floor < n) {
    out.push_back(floor);
  }
  out.push_back(n);
  return out;
}

namespace {

/// "the nearest reachable lengths are 12 and 40" for a refusal.
std::string nearest_text(const std::vector<uint32_t>& reachable, uint32_t wanted) {
  uint32_t below = 0, above = reachable.back();
  for (const uint32_t r : reachable) {
    if (r <= wanted) below = r;
  }
  for (auto it = reachable.rbegin(); it != reachable.rend(); ++it) {
    if (*it >= wanted) above = *it;
  }
  return "the nearest reachable lengths are " + std::to_string(below) + " and " +
         std::to_string(above);
}

}  // namespace

/// Ok where load_state_at() has a state to load.
Status Checkpoints::check_state_at(uint32_t n_tokens) const {
  const bool kept = n_tokens == 0 || of_length(n_tokens) >= 0;
  if (kept || !core_.spec().is_hybrid()) return Status::ok();
  return Status::error(Code::kState, "length %u has no checkpoint, which a hybrid model needs; %s",
                       n_tokens, nearest_text(reachable(), n_tokens).c_str());
}

Status Checkpoints::load_state_at(uint32_t n_tokens) {
  if (n_tokens == 0) {
    for (const auto& tier : core_.tiers) tier->store().clear_state();
    return Status::ok();
  }
  const int32_t index = of_length(n_tokens);
  if (index < 0) return check_state_at(n_tokens);
  for (const auto& tier : core_.tiers)
    SHARPI_TRY(tier->store().load_checkpoint(static_cast<uint32_t>(index)));
  return Status::ok();
}

Status Checkpoints::check(uint32_t n_tokens) const {
  const KvLedger& ledger = core_.ledger();
  const uint32_t now = ledger.n_tokens();
  if (n_tokens > now) {
    return Status::error(Code::kInvalidArgument,
                         "length %u is more than the %u tokens of the session", n_tokens, now);
  }
  if (n_tokens == now && core_.transcript.has_state()) return Status::ok();
  if (n_tokens != 0 && n_tokens < ledger.evicted_floor()) {
    return Status::error(Code::kState, "rows up to position %u were evicted; %s",
                         ledger.evicted_floor(), nearest_text(reachable(), n_tokens).c_str());
  }
  if (n_tokens != 0 && n_tokens < ledger.ring_floor()) {
    return Status::error(Code::kState, "sliding-window layers can go back by %u tokens; %s",
                         core_.shape.rewind, nearest_text(reachable(), n_tokens).c_str());
  }
  return check_state_at(n_tokens);
}

Status Checkpoints::truncate(uint32_t n_tokens) {
  SHARPI_TRY(check(n_tokens));
  const KvLedger& ledger = core_.ledger();
  const uint32_t now = ledger.n_tokens();
  if (n_tokens == now && core_.transcript.has_state()) return Status::ok();
  SHARPI_TRY(memory_.own_rows([&](uint32_t layer) {
    return n_tokens == 0 ? 0 : ledger.n_slots(layer) - (now - n_tokens);
  }));
  if (core_.spec().is_hybrid()) SHARPI_TRY(load_state_at(n_tokens));
  core_.transcript.take_back(n_tokens);
  if (n_tokens == 0) {
    memory_.begin_again();
    core_.archive.clear();
  }
  core_.drop_positions();
  drafters_.truncated(n_tokens, of_length(n_tokens));
  for (Checkpoint& c : all_) {
    if (c.n_tokens > n_tokens) c = Checkpoint{};
  }
  bring_logits_back();
  return Status::ok();
}

/// The checkpoint of a length; -1 = there is none.
int32_t Checkpoints::of_length(uint32_t n_tokens) const {
  for (size_t i = 0; i < all_.size(); ++i) {
    if (all_[i].used && all_[i].n_tokens == n_tokens) return static_cast<int32_t>(i);
  }
  return -1;
}

/// Logits of the present length, if a checkpoint kept them; otherwise there stay none.
void Checkpoints::bring_logits_back() noexcept {
  for (size_t i = 0; i < all_.size(); ++i) {
    const Checkpoint& c = all_[i];
    if (!c.used || !c.has_logits || c.n_tokens != core_.ledger().n_tokens()) continue;
    if (core_.head().write_logits(0, logits(i)).is_ok()) core_.transcript.found_logits();
  }
}

Status Checkpoints::check_takes(uint64_t n_tokens) const {
  if (!core_.spec().is_hybrid()) {
    return Status::error(Code::kUnsupported,
                         "this model has no recurrent layers; truncate needs no checkpoints");
  }
  if (all_.empty()) {
    return Status::error(Code::kUnsupported, "the session was created without checkpoints");
  }
  if (place_for(n_tokens) < all_.size()) return Status::ok();
  return Status::error(Code::kState, "all %zu checkpoints are pinned", all_.size());
}

/// Where a checkpoint of a length goes; their number if all are pinned.
size_t Checkpoints::place_for(uint64_t n_tokens) const {
  const size_t n = all_.size();
  size_t oldest = n;
  for (size_t i = 0; i < n; ++i) {  // the same length again replaces itself
    if (all_[i].used && all_[i].n_tokens == n_tokens) return i;
  }
  for (size_t i = 0; i < n; ++i) {
    if (!all_[i].used) return i;
    const bool older = oldest == n || all_[i].age < all_[oldest].age;
    if (!all_[i].pinned && older) oldest = i;
  }
  return oldest;
}

Status Checkpoints::make(bool pin) {
  const uint32_t n_tokens = core_.ledger().n_tokens();
  SHARPI_TRY(check_takes(n_tokens));
  const size_t place = place_for(n_tokens);
  Checkpoint& here = all_[place];
  const bool was_pinned = here.used && here.pinned && here.n_tokens == n_tokens;
  const bool has_logits = core_.transcript.logit_rows().n != 0;
  std::vector<float>& row = drawer_.scratch();
  if (has_logits)
    SHARPI_TRY(core_.head().read_logits(core_.transcript.logit_rows().first, row.data()));
  for (const auto& tier : core_.tiers)
    SHARPI_TRY(tier->store().save_checkpoint(static_cast<uint32_t>(place)));
  if (has_logits) std::copy(row.begin(), row.end(), logits(place));
  drafters_.save_checkpoint(place);
  here = Checkpoint{n_tokens, true, pin || was_pinned, has_logits, ++clock_};
  return Status::ok();
}

void Checkpoints::clear() noexcept {
  std::fill(all_.begin(), all_.end(), Checkpoint{});
  clock_ = 0;
}

uint32_t Checkpoints::n_used() const {
  return static_cast<uint32_t>(
      std::count_if(all_.begin(), all_.end(), [](const Checkpoint& c) { return c.used; }));
}

const float* Checkpoints::logits(size_t index) const {
  return logits_.data() + index * core_.spec().n_vocab;
}

float* Checkpoints::logits(size_t index) {
  return logits_.data() + index * core_.spec().n_vocab;
}

void Checkpoints::adopt(size_t index, const Checkpoint& saved) noexcept {
  all_[index] = saved;
  clock_ = std::max(clock_, saved.age);
}

void Checkpoints::copy_from(const Checkpoints& from) {
  all_ = from.all_;
  logits_.assign(from.logits_.begin(), from.logits_.end());
  clock_ = from.clock_;
}

}  // namespace sharpi
