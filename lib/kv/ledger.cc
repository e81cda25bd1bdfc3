// SPDX-License-Identifier: MIT
#include "kv/ledger.h"

#include <algorithm>

namespace sharpi {

KvLedger::KvLedger(const ModelSpec& spec, uint32_t window, uint32_t ring_slots)
    : window_(window), ring_slots_(ring_slots) {
  const size_t n = spec.layers.size();
  rows_.resize(n);
  source_.resize(n);
  full_owner_.resize(n);
  for (size_t l = 0; l < n; ++l) {
    const LayerSpec& layer = spec.layers[l];
    const bool shares = layer.mixer == MixerKind::kAttention && layer.attention.kv_source >= 0;
    source_[l] =
        shares ? static_cast<uint32_t>(layer.attention.kv_source) : static_cast<uint32_t>(l);
    full_owner_[l] = layer.owns_kv() && layer.attention.window == 0;
  }
}

uint32_t KvLedger::min_slots() const {
  uint32_t least = UINT32_MAX;
  for (size_t l = 0; l < rows_.size(); ++l) {
    if (full_owner_[l]) least = std::min(least, rows_[l].n_slots);
  }
  return least == UINT32_MAX ? 0 : least;
}

uint32_t KvLedger::max_slots() const {
  uint32_t most = 0;
  for (size_t l = 0; l < rows_.size(); ++l) {
    if (full_owner_[l]) most = std::max(most, rows_[l].n_slots);
  }
  return most;
}

void KvLedger::commit(uint32_t n) {
  n_tokens_ += n;
  ring_high_ = std::max(ring_high_, n_tokens_);
  if (ring_slots_ != 0 && ring_high_ > ring_slots_) {
    ring_low_ = std::max(ring_low_, ring_high_ - ring_slots_);
  }
  for (size_t l = 0; l < rows_.size(); ++l) {
    if (full_owner_[l]) rows_[l].n_slots += n;
  }
  if (n_tokens_ > capture_window_)
    capture_low_ = std::max(capture_low_, n_tokens_ - capture_window_);
}

void KvLedger::spoil_capture(uint32_t n) {
  const uint64_t end = uint64_t{n_tokens_} + n;
  const uint64_t low = end > capture_window_ ? end - capture_window_ : 0;
  capture_low_ = std::max(capture_low_, static_cast<uint32_t>(std::min<uint64_t>(low, n_tokens_)));
}

uint32_t KvLedger::rows_up_to(uint32_t layer, uint32_t head, uint64_t p) const {
  const LayerRows& r = rows(layer);
  if (r.n_slots > r.n_compacted && p >= r.tail_position) {
    return static_cast<uint32_t>(
        std::min<uint64_t>(r.n_slots, r.n_compacted + (p - r.tail_position) + 1));
  }
  if (r.n_compacted == 0) return 0;
  const std::vector<uint32_t>& list = r.positions.size() == 1 ? r.positions[0] : r.positions[head];
  return static_cast<uint32_t>(std::upper_bound(list.begin(), list.end(), p) - list.begin());
}

void KvLedger::set_compacted(uint32_t layer, std::vector<std::vector<uint32_t>> positions) {
  LayerRows& r = rows_[layer];
  const auto kept = static_cast<uint32_t>(positions.front().size());
  if (kept == r.n_slots) return;  // identity: nothing was evicted
  r.positions = std::move(positions);
  r.n_compacted = kept;
  r.n_slots = kept;
  r.tail_position = n_tokens_;
  compacted_ = true;
  evicted_floor_ = n_tokens_;
}

void KvLedger::truncate(uint32_t n) {
  const uint32_t drop = n_tokens_ - n;
  for (size_t l = 0; l < rows_.size(); ++l) {
    if (full_owner_[l]) rows_[l].n_slots -= drop;
  }
  n_tokens_ = n;
  capture_low_ = std::min(capture_low_, n);
  if (n == 0) {
    ring_high_ = 0;
    ring_low_ = 0;
    evicted_floor_ = 0;
    capture_low_ = 0;
    compacted_ = false;
    for (LayerRows& r : rows_) r = LayerRows{};
  }
}

uint32_t KvLedger::position(uint32_t layer, uint32_t head, uint32_t slot) const {
  const LayerRows& r = rows(layer);
  if (slot >= r.n_compacted) return r.tail_position + (slot - r.n_compacted);
  const std::vector<uint32_t>& list = r.positions.size() == 1 ? r.positions[0] : r.positions[head];
  return list[slot];
}

}  // namespace sharpi
