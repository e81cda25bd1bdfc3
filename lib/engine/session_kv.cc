// SPDX-License-Identifier: MIT
// What a session can do with its KV besides growing it: reserve, truncate, checkpoints, fork, and
// the facts about it.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "engine/session.h"

namespace sharpi {

HeldBytes Session::kv_held() const {
  HeldBytes b;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    uint64_t& to = model_->tier_ids()[t] == TierId::kCpu ? b.host : b.device;
    const KvStore& kv = tiers_[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) to += kv.own_bytes(g);
  }
  return b;
}

/// What growing every full-attention group to n_slots adds.
HeldBytes Session::kv_growth(uint32_t n_slots) const {
  HeldBytes b;
  for (size_t t = 0; t < tiers_.size(); ++t) {
    uint64_t& to = model_->tier_ids()[t] == TierId::kCpu ? b.host : b.device;
    const KvStore& kv = tiers_[t]->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      if (kv.layout().groups[g].ring || kv.capacity(g) >= n_slots) continue;
      to += kv.held_bytes_of(g, n_slots) - kv.held_bytes(g);
    }
  }
  return b;
}

void Session::settle_share(const HeldBytes& kv_before) noexcept {
  const HeldBytes now = kv_held(), &all = share_.held();
  share_.settle({all.device - kv_before.device + now.device, all.host - kv_before.host + now.host});
}

Status Session::reserve(uint32_t n_slots) {
  if (n_slots > shape_.capacity(model_->plan().model.n_chunk)) {
    return Status::error(Code::kDoesNotFit,
                         "%u slots are asked for, but the session was priced for %u", n_slots,
                         shape_.capacity(model_->plan().model.n_chunk));
  }
  const HeldBytes share = share_.held();
  SHARPI_TRY(share_.take(kv_growth(n_slots)));
  struct Grown {
    KvStore* store;
    uint32_t group, before;
  };
  std::vector<Grown> grown;
  for (const auto& tier : tiers_) {
    KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      if (kv.layout().groups[g].ring || kv.capacity(g) >= n_slots) continue;
      grown.push_back({&kv, g, kv.capacity(g)});
      const Status got = kv.reserve(g, n_slots);
      if (got.is_ok()) continue;
      for (const Grown& one : grown) one.store->shrink(one.group, one.before);
      share_.settle(share);
      return got;
    }
  }
  return Status::ok();
}

std::vector<uint32_t> Session::reachable() const {
  std::vector<uint32_t> out;
  const uint32_t n = ledger_.n_tokens();
  const uint32_t floor = std::max(ledger_.ring_floor(), ledger_.evicted_floor());
  if (model_->spec().is_hybrid()) {
    for (const Checkpoint& c : checkpoints_) {
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

/// "; reachable are 0, 12 and 40" for a refusal: the nearest lengths on both sides.
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
Status Session::check_state_at(uint32_t n_tokens) const {
  const bool kept = n_tokens == 0 ||
                    std::any_of(checkpoints_.begin(), checkpoints_.end(), [&](const Checkpoint& c) {
                      return c.used && c.n_tokens == n_tokens;
                    });
  if (kept || !model_->spec().is_hybrid()) return Status::ok();
  return Status::error(Code::kState, "length %u has no checkpoint, which a hybrid model needs; %s",
                       n_tokens, nearest_text(reachable(), n_tokens).c_str());
}

Status Session::load_state_at(uint32_t n_tokens) {
  if (n_tokens == 0) {
    for (const auto& tier : tiers_) tier->store().clear_state();
    return Status::ok();
  }
  for (uint32_t i = 0; i < checkpoints_.size(); ++i) {
    if (!checkpoints_[i].used || checkpoints_[i].n_tokens != n_tokens) continue;
    for (const auto& tier : tiers_) SHARPI_TRY(tier->store().load_checkpoint(i));
    return Status::ok();
  }
  return check_state_at(n_tokens);
}

Status Session::truncate(uint32_t n_tokens) {
  const uint32_t now = ledger_.n_tokens();
  if (n_tokens > now) {
    return Status::error(Code::kInvalidArgument,
                         "length %u is more than the %u tokens of the session", n_tokens, now);
  }
  if (n_tokens == now) return Status::ok();
  if (n_tokens != 0 && n_tokens < ledger_.evicted_floor()) {
    return Status::error(Code::kState, "rows up to position %u were evicted; %s",
                         ledger_.evicted_floor(), nearest_text(reachable(), n_tokens).c_str());
  }
  if (n_tokens != 0 && n_tokens < ledger_.ring_floor()) {
    return Status::error(Code::kState, "sliding-window layers can go back by %u tokens; %s",
                         shape_.rewind, nearest_text(reachable(), n_tokens).c_str());
  }
  SHARPI_TRY(check_state_at(n_tokens));
  SHARPI_TRY(own_rows([&](uint32_t layer) {
    return n_tokens == 0 ? 0 : ledger_.n_slots(layer) - (now - n_tokens);
  }));
  if (model_->spec().is_hybrid()) SHARPI_TRY(load_state_at(n_tokens));
  ledger_.truncate(n_tokens);
  history_.resize(n_tokens);
  if (ngram_ != nullptr) ngram_->truncate(n_tokens);
  if (mtp_ != nullptr) mtp_->truncate(ledger_.next_position(), checkpoint_at(n_tokens));
  for (Checkpoint& c : checkpoints_) {
    if (c.n_tokens > n_tokens) c = Checkpoint{};
  }
  bring_logits_back();
  return Status::ok();
}

/// The checkpoint of a length; -1 = there is none.
int32_t Session::checkpoint_at(uint32_t n_tokens) const {
  for (size_t i = 0; i < checkpoints_.size(); ++i) {
    if (checkpoints_[i].used && checkpoints_[i].n_tokens == n_tokens)
      return static_cast<int32_t>(i);
  }
  return -1;
}

/// Logits of the present length, if a checkpoint kept them; otherwise there are none.
void Session::bring_logits_back() noexcept {
  n_logit_rows_ = first_logit_row_ = 0;
  for (size_t i = 0; i < checkpoints_.size(); ++i) {
    const Checkpoint& c = checkpoints_[i];
    if (!c.used || !c.has_logits || c.n_tokens != ledger_.n_tokens()) continue;
    n_logit_rows_ = head().write_logits(0, logits_of(i)).is_ok() ? 1 : 0;
  }
}

Status Session::check_takes_checkpoints(uint64_t n_tokens) const {
  if (!model_->spec().is_hybrid()) {
    return Status::error(Code::kUnsupported,
                         "this model has no recurrent layers; truncate needs no checkpoints");
  }
  if (checkpoints_.empty()) {
    return Status::error(Code::kUnsupported, "the session was created without checkpoints");
  }
  if (checkpoint_slot(n_tokens) < checkpoints_.size()) return Status::ok();
  return Status::error(Code::kState, "all %zu checkpoints are pinned", checkpoints_.size());
}

/// Where a checkpoint of a length goes; their number if all are pinned.
size_t Session::checkpoint_slot(uint64_t n_tokens) const {
  const size_t n = checkpoints_.size();
  size_t oldest = n;
  for (size_t i = 0; i < n; ++i) {  // the same length again replaces itself
    if (checkpoints_[i].used && checkpoints_[i].n_tokens == n_tokens) return i;
  }
  for (size_t i = 0; i < n; ++i) {
    if (!checkpoints_[i].used) return i;
    const bool older = oldest == n || checkpoints_[i].age < checkpoints_[oldest].age;
    if (!checkpoints_[i].pinned && older) oldest = i;
  }
  return oldest;
}

Status Session::checkpoint(bool pin) {
  SHARPI_TRY(check_takes_checkpoints(ledger_.n_tokens()));
  const size_t slot = checkpoint_slot(ledger_.n_tokens());
  const bool was_pinned = checkpoints_[slot].used && checkpoints_[slot].pinned &&
                          checkpoints_[slot].n_tokens == ledger_.n_tokens();
  const bool has_logits = n_logit_rows_ != 0;
  if (has_logits) SHARPI_TRY(head().read_logits(first_logit_row_, logits_row_.data()));
  for (const auto& tier : tiers_)
    SHARPI_TRY(tier->store().save_checkpoint(static_cast<uint32_t>(slot)));
  if (has_logits) std::copy(logits_row_.begin(), logits_row_.end(), logits_of(slot));
  if (mtp_ != nullptr) mtp_->save_checkpoint(slot);
  checkpoints_[slot] =
      Checkpoint{ledger_.n_tokens(), true, pin || was_pinned, has_logits, ++checkpoint_clock_};
  return Status::ok();
}

void Session::info(sharpi_session_summary* out) const {
  out->n_tokens = ledger_.n_tokens();
  out->n_ctx = shape_.n_ctx;
  out->capacity = full_capacity();
  out->n_slots_min = ledger_.min_slots();
  out->n_slots_max = ledger_.max_slots();
  out->is_compacted = ledger_.is_compacted();
  out->n_logit_rows = n_logit_rows_;
  out->n_checkpoints = static_cast<uint32_t>(std::count_if(
      checkpoints_.begin(), checkpoints_.end(), [](const Checkpoint& c) { return c.used; }));
  Plan like = model_->plan();
  like.session = shape_;
  const sharpi_plan_summary s = like.summary();
  out->k_dtype = s.k_dtype;
  out->v_dtype = s.v_dtype;
  out->tail_k_dtype = s.tail_k_dtype;
  out->tail_v_dtype = s.tail_v_dtype;
  const KvTotals kv = kv_totals();
  out->kv_payload_bytes = kv.payload;
  out->kv_held_bytes = kv.held;
  out->kv_shared_bytes = kv.shared;
  out->seed = sampler_.params().seed;
  out->n_prefill_tokens = n_prefill_;
  out->n_decode_tokens = n_decode_;
  out->prefill_seconds = prefill_seconds_;
  out->decode_seconds = decode_seconds_;
  const std::string& paths = model_->paths();
  const bool whole = paths.size() < sizeof out->paths;
  std::snprintf(out->paths, sizeof out->paths, "%.*s%s",
                whole ? static_cast<int>(paths.size()) : static_cast<int>(sizeof out->paths) - 4,
                paths.c_str(), whole ? "" : "...");
}

Status Session::layer_info(uint32_t layer, sharpi_layer_info* out) const {
  SHARPI_TRY(describe_layer(model_->plan(), layer, out));
  if (!model_->spec().layers[layer].owns_kv()) return Status::ok();
  const KvStore& kv = store(layer);
  const auto g = static_cast<uint32_t>(kv.layout().group_of_layer[layer]);
  const KvGroup& group = kv.layout().groups[g];
  out->k_dtype = static_cast<uint32_t>(kv.layout().find(layer)->k_dtype);
  out->v_dtype = static_cast<uint32_t>(kv.layout().find(layer)->v_dtype);
  out->capacity = kv.capacity(g);
  out->n_slots =
      group.ring ? std::min(ledger_.n_tokens(), group.ring_slots) : ledger_.n_slots(layer);
  return Status::ok();
}

std::vector<MemoryRow> Session::memory_rows() const {
  std::vector<MemoryRow> rows;
  for (const auto& tier : tiers_) {
    for (const MemoryRow& r : tier->memory_rows()) rows.push_back(r);
  }
  for (const auto& scratch : score_scratch_) {
    for (const MemoryRow& r : scratch->memory_rows()) rows.push_back(r);
  }
  EngineBytes b;
  if (mtp_ != nullptr) {
    for (const MemoryRow& r : mtp_->memory_rows()) rows.push_back(r);
    b.mtp_queue = mtp_->bytes();
  }
  if (draft_model_ != nullptr) {
    for (const MemoryRow& r : draft_model_->memory_rows()) rows.push_back(r);
  }
  b.history = history_.capacity() * sizeof(int32_t);
  b.sampler = logits_row_.capacity() * sizeof(float) + sampler_.bytes();
  b.checkpoint_logits = checkpoint_logits_.capacity() * sizeof(float);
  if (tables_.is_reserved()) b.compaction_tables = tables_.bytes() + ledger_.position_bytes();
  if (ngram_ != nullptr) b.ngram_index = ngram_->bytes();
  const std::vector<MemoryRow> own = engine_rows(b);
  rows.insert(rows.end(), own.begin(), own.end());
  return rows;
}

Status Session::kept(uint32_t layer, uint32_t kv_head, std::vector<uint32_t>* out) const {
  const ModelSpec& spec = model_->spec();
  if (layer >= spec.n_layers()) {
    return Status::error(Code::kInvalidArgument, "layer %u does not exist; the model has %u layers",
                         layer, spec.n_layers());
  }
  const LayerSpec& l = spec.layers[layer];
  if (l.mixer != MixerKind::kAttention || l.attention.window != 0) {
    return Status::error(Code::kUnsupported, "layer %u stores no slots of its own length", layer);
  }
  if (kv_head >= l.attention.n_kv_heads) {
    return Status::error(Code::kInvalidArgument,
                         "KV head %u does not exist; there are %u in layer %u", kv_head,
                         l.attention.n_kv_heads, layer);
  }
  const uint32_t n = ledger_.n_slots(layer);
  out->resize(n);
  for (uint32_t i = 0; i < n; ++i) (*out)[i] = ledger_.position(layer, kv_head, i);
  return Status::ok();
}

}  // namespace sharpi
