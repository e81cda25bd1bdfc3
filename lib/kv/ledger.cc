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
  n_heads_.resize(n);
  first_list_.resize(n);
  uint64_t lists = 0;
  for (size_t l = 0; l < n; ++l) {
    const LayerSpec& layer = spec.layers[l];
    const int32_t source = layer.kv_source();
    source_[l] = source >= 0 ? static_cast<uint32_t>(source) : static_cast<uint32_t>(l);
    full_owner_[l] = layer.owns_kv() && layer.attention.window == 0;
    n_heads_[l] = full_owner_[l] ? layer.attention.n_kv_heads : 0;
    first_list_[l] = lists;
    lists += n_heads_[l];
  }
  lags_.resize(lists);
}

uint32_t KvLedger::min_slots() const {
  uint32_t least = UINT32_MAX;
  for (size_t l = 0; l < rows_.size(); ++l) {
    for (uint32_t h = 0; h < n_heads_[l]; ++h)
      least = std::min(least, n_slots(static_cast<uint32_t>(l), h));
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

uint64_t KvLedger::rows_of_heads(uint32_t layer) const {
  uint64_t rows = 0;
  for (uint32_t h = 0; h < n_heads_[layer]; ++h) rows += n_slots(layer, h);
  return rows;
}

uint32_t KvLedger::fullest(const KvGroup& group) const {
  uint32_t most = 0;
  for (const KvLayerLayout& l : group.layers) most = std::max(most, n_slots(l.layer));
  return most;
}

void KvLedger::commit(uint32_t n) {
  n_tokens_ += n;
  store_in_rings(n_tokens_);
  for (size_t l = 0; l < rows_.size(); ++l) {
    if (full_owner_[l]) rows_[l].n_slots += n;
  }
  if (n_tokens_ > capture_window_)
    capture_low_ = std::max(capture_low_, n_tokens_ - capture_window_);
}

void KvLedger::store_in_rings(uint32_t end) {
  ring_high_ = std::max(ring_high_, end);
  if (ring_slots_ != 0 && ring_high_ > ring_slots_) {
    ring_low_ = std::max(ring_low_, ring_high_ - ring_slots_);
  }
}

void KvLedger::spoil_capture(uint32_t n) {
  const uint64_t end = uint64_t{n_tokens_} + n;
  const uint64_t low = end > capture_window_ ? end - capture_window_ : 0;
  capture_low_ = std::max(capture_low_, static_cast<uint32_t>(std::min<uint64_t>(low, n_tokens_)));
}

uint32_t KvLedger::rows_up_to(uint32_t layer, uint32_t head, uint64_t p) const {
  const LayerRows& r = rows(layer);
  const uint32_t less = lag(layer, head);
  if (r.n_slots > r.n_compacted && p >= r.tail_position) {
    return static_cast<uint32_t>(
               std::min<uint64_t>(r.n_slots, r.n_compacted + (p - r.tail_position) + 1)) -
           less;
  }
  if (r.n_compacted == 0) return 0;
  const std::span<const uint32_t> list = positions(layer, r.n_lists == 1 ? 0 : head);
  return static_cast<uint32_t>(std::upper_bound(list.begin(), list.end(), p) - list.begin());
}

void KvLedger::reserve_positions(uint32_t capacity) {
  if (stride_ != 0) return;
  positions_.resize(bytes_of_positions(capacity) / sizeof(uint32_t));
  stride_ = capacity;
}

uint64_t KvLedger::bytes_of_positions(uint32_t capacity) const {
  uint64_t lists = 0;
  for (const uint32_t n : n_heads_) lists += n;
  return lists * capacity * sizeof(uint32_t);
}

void KvLedger::release_positions() noexcept {
  std::vector<uint32_t>().swap(positions_);
  stride_ = 0;
}

std::span<const uint32_t> KvLedger::positions(uint32_t layer, uint32_t list) const {
  const uint32_t owner = source_[layer];
  return {positions_.data() + (first_list_[owner] + list) * stride_,
          rows_[owner].n_compacted - lag(layer, list)};
}

void KvLedger::forget_heads() noexcept {
  std::fill(lags_.begin(), lags_.end(), 0u);
  by_head_ = false;
}

bool KvLedger::all_stay(uint32_t layer, const KeepLists& keep) const {
  for (uint32_t h = 0; h < n_heads_[layer]; ++h) {
    if (keep[keep.size() == 1 ? 0 : h].size() != n_slots(layer, h)) return false;
  }
  return true;
}

void KvLedger::set_compacted(uint32_t layer, const KeepLists& keep) noexcept {
  LayerRows& r = rows_[layer];
  if (all_stay(layer, keep)) return;
  // In place: slots ascend, so row i is read before it is written; list 0, which others may start
  // from, is written last.
  const uint32_t lists = keep.size() == 1 && r.n_lists <= 1 ? 1 : n_heads_[layer];
  for (uint32_t h = lists; h-- > 0;) {
    const std::span<const uint32_t> slots = keep[keep.size() == 1 ? 0 : h];
    uint32_t* to = list(layer, h);
    for (size_t i = 0; i < slots.size(); ++i) to[i] = position(layer, h, slots[i]);
  }
  uint32_t kept = 0;
  for (size_t h = 0; h < keep.size(); ++h)
    kept = std::max(kept, static_cast<uint32_t>(keep[h].size()));
  for (uint32_t h = 0; h < n_heads_[layer]; ++h) {
    const size_t own = keep[keep.size() == 1 ? 0 : h].size();
    lags_[first_list_[layer] + h] = kept - static_cast<uint32_t>(own);
  }
  r.n_lists = lists;
  r.n_compacted = kept;
  r.n_slots = kept;
  r.tail_position = n_tokens_;
  compacted_ = true;
  evicted_floor_ = n_tokens_;
}

void KvLedger::set_positions(uint32_t layer, uint32_t head,
                             std::span<const uint32_t> positions) noexcept {
  std::copy(positions.begin(), positions.end(), list(layer, head));
  if (head != 0) return;
  LayerRows& r = rows_[layer];
  r.n_lists = n_heads_[layer];
  r.n_compacted = r.n_slots;
  r.tail_position = n_tokens_;
  compacted_ = true;
  evicted_floor_ = n_tokens_;
}

void KvLedger::rebase(uint32_t shift) noexcept {
  const auto less = [shift](uint32_t n) { return n > shift ? n - shift : 0; };
  for (uint32_t l = 0; l < rows_.size(); ++l) {
    LayerRows& r = rows_[l];
    for (uint32_t i = 0; i < r.n_lists; ++i) {
      for (uint32_t slot = 0; slot < r.n_compacted - lag(l, i); ++slot) {
        uint32_t& at = list(l, i)[slot];
        at = std::max(slot, less(at));
      }
    }
    r.tail_position = less(r.tail_position);
  }
  base_ += shift;
  n_tokens_ -= shift;
  ring_high_ = less(ring_high_);
  ring_low_ = less(ring_low_);
  evicted_floor_ = less(evicted_floor_);
  capture_low_ = less(capture_low_);
  scored_tokens_ = less(scored_tokens_);
}

void KvLedger::restart(uint64_t base, uint32_t n) noexcept {
  base_ = base;
  n_tokens_ = ring_high_ = scored_tokens_ = n;
  ring_low_ = evicted_floor_ = 0;
  capture_low_ = n > capture_window_ ? n - capture_window_ : 0;
  compacted_ = false;
  forget_heads();
  for (size_t l = 0; l < rows_.size(); ++l) {
    rows_[l] = LayerRows{};
    if (full_owner_[l]) rows_[l].n_slots = n;
  }
}

void KvLedger::truncate(uint32_t n) {
  const uint32_t drop = n_tokens_ - n;
  for (size_t l = 0; l < rows_.size(); ++l) {
    if (full_owner_[l]) rows_[l].n_slots -= drop;
  }
  n_tokens_ = n;
  capture_low_ = std::min(capture_low_, n);
  scored_tokens_ = std::min(scored_tokens_, n);
  if (n == 0) {
    base_ = 0;
    ring_high_ = 0;
    ring_low_ = 0;
    evicted_floor_ = 0;
    capture_low_ = 0;
    compacted_ = false;
    forget_heads();
    for (LayerRows& r : rows_) r = LayerRows{};
  }
}

uint32_t KvLedger::position(uint32_t layer, uint32_t head, uint32_t slot) const {
  const LayerRows& r = rows(layer);
  const uint32_t placed = r.n_compacted - lag(layer, head);
  if (slot >= placed) return r.tail_position + (slot - placed);
  return positions(layer, r.n_lists == 1 ? 0 : head)[slot];
}

}  // namespace sharpi
