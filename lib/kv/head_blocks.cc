// SPDX-License-Identifier: MIT
#include "kv/head_blocks.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/checked.h"
#include "kv/unit_moves.h"

namespace sharpi {
namespace {

/// One head's part of n rows, one behind the other.
void copy_head(const KvView& like, bool value, uint32_t head, const std::byte* rows, uint32_t n,
               std::byte* to) {
  const uint64_t row = value ? like.v_row_bytes : like.k_row_bytes, own = row / like.n_heads;
  uint64_t at = 0;
  for (const KvPart& part : KvHeadParts(like, value, head)) {
    for (uint32_t i = 0; i < n; ++i)
      std::memcpy(to + i * own + at, rows + i * row + part.offset, part.bytes);
    at += part.bytes;
  }
}

}  // namespace

HeadBlocks::HeadBlocks(const KvGroup& group, uint32_t most_slots) : group_(&group) {
  uint64_t desk = 0;
  for (size_t i = 0; i < group.layers.size(); ++i) {
    const KvLayerLayout& l = group.layers[i];
    first_head_.push_back(static_cast<uint32_t>(heads_.size()));
    Head h;
    h.layer = static_cast<uint32_t>(i);
    const uint64_t k_bytes = uint64_t{kKvBlockSlots} * (l.k_row_bytes / l.n_heads);
    h.v_offset = l.one_row() ? 0 : k_bytes;
    h.block_bytes = k_bytes + uint64_t{kKvBlockSlots} * (l.v_row_bytes / l.n_heads);
    unit_ = std::gcd(unit_, h.block_bytes);
    desk = std::max(desk, h.block_bytes * l.n_heads);
    for (; h.index < l.n_heads; ++h.index) heads_.push_back(h);
  }
  order_.resize(heads_.size());
  std::iota(order_.begin(), order_.end(), 0u);
  blocks_of_head_ = div_up(most_slots, kKvBlockSlots);
  const uint64_t units = unit_ == 0 ? 0 : group.block_bytes(most_slots) / unit_;
  desk_offset_ = heads_.size() * blocks_of_head_ * sizeof(uint64_t) +
                 round_up(units * sizeof(uint32_t), sizeof(uint64_t));
  table_bytes_ = desk_offset_ + desk;
}

void HeadBlocks::sort_heads() noexcept {
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    const uint32_t at_a = heads_[a].lag % kKvBlockSlots, at_b = heads_[b].lag % kKvBlockSlots;
    return at_a != at_b ? at_a < at_b : a < b;
  });
  ++version_;
}

void HeadBlocks::set_lags(std::span<const uint32_t> lags) noexcept {
  for (size_t h = 0; h < heads_.size(); ++h) heads_[h].lag = lags[h];
  sort_heads();
}

uint64_t HeadBlocks::bytes_with(std::span<const uint32_t> lags, uint32_t n_slots) const {
  uint64_t sum = 0;
  for (size_t h = 0; h < heads_.size(); ++h) {
    const uint32_t lag = lags.empty() ? heads_[h].lag : lags[h];
    if (n_slots > lag) sum += div_up(n_slots - lag, kKvBlockSlots) * heads_[h].block_bytes;
  }
  return sum;
}

uint64_t HeadBlocks::full_bytes(uint32_t n_slots) const {
  uint64_t sum = 0;
  for (uint32_t h = 0; h < n_heads(); ++h)
    sum += rows(h, n_slots) / kKvBlockSlots * heads_[h].block_bytes;
  return sum;
}

uint32_t HeadBlocks::slots_in(std::span<const uint32_t> lags, uint64_t bytes, uint32_t most) const {
  uint32_t low = 0, high = most;  // low slots fit
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (bytes_with(lags, middle) <= bytes)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

uint32_t HeadBlocks::slots_behind(uint64_t bytes, uint32_t most) const {
  uint32_t low = 0, high = most;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (full_bytes(middle) >= bytes)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

/// Calls visit(head, number of the block, offset) for the blocks that n_slots need, in their order.
template <class Visit>
void HeadBlocks::each_block(uint32_t n_slots, Visit&& visit) const {
  uint64_t at = 0;
  for (uint64_t step = 0; step * kKvBlockSlots < n_slots; ++step) {
    for (const uint32_t h : order_) {
      const uint32_t lag = heads_[h].lag, late = lag / kKvBlockSlots;
      if (step < late || step * kKvBlockSlots + lag % kKvBlockSlots >= n_slots) continue;
      visit(h, step - late, at);
      at += heads_[h].block_bytes;
    }
  }
}

void HeadBlocks::name_blocks(uint32_t n_slots) noexcept {
  ++version_;
  each_block(n_slots, [&](uint32_t head, uint64_t block, uint64_t at) { table(head)[block] = at; });
}

KvView HeadBlocks::view(size_t layer, uint32_t head, std::byte* base) const {
  const KvLayerLayout& l = group_->layers[layer];
  const uint32_t h = first_head_[layer] + head;
  KvView v = l.view();
  v.n_heads = 1;
  v.k_row_bytes /= l.n_heads;
  v.v_row_bytes /= l.n_heads;
  v.k = base;
  v.v = l.one_row() ? v.k : base + heads_[h].v_offset;
  v.table = table(h);
  return v;
}

/// The rows of block number `block` of all heads of a layer become blocks from `to` on, which is
/// nowhere behind them.
uint64_t HeadBlocks::unpack_layer(std::byte* base, size_t layer, uint32_t block,
                                  std::span<const uint32_t> counts, uint64_t to) noexcept {
  const KvLayerLayout& l = group_->layers[layer];
  const KvView like = l.view();
  const uint32_t first = block * kKvBlockSlots;
  const auto live = [&](uint32_t h) {
    const uint32_t n = counts[first_head_[layer] + h];
    return n > first ? std::min(n - first, kKvBlockSlots) : 0;
  };
  uint32_t most = 0;
  for (uint32_t h = 0; h < l.n_heads; ++h) most = std::max(most, live(h));
  const std::byte* from = base + block * group_->block_stride;
  std::byte *k = desk(), *v = desk() + uint64_t{kKvBlockSlots} * l.k_row_bytes;
  std::memcpy(k, from + l.k_offset, uint64_t{most} * l.k_row_bytes);
  std::memcpy(v, from + l.v_offset, uint64_t{most} * l.v_row_bytes);
  for (uint32_t h = 0; h < l.n_heads; ++h) {
    const uint32_t n = live(h), in_group = first_head_[layer] + h;
    if (n == 0) continue;
    copy_head(like, false, h, k, n, base + to);
    if (!l.one_row()) copy_head(like, true, h, v, n, base + to + heads_[in_group].v_offset);
    table(in_group)[block] = to;
    to += heads_[in_group].block_bytes;
  }
  return to;
}

void HeadBlocks::adopt_counts(std::span<const uint32_t> counts) noexcept {
  const uint32_t most = counts.empty() ? 0 : *std::max_element(counts.begin(), counts.end());
  for (size_t h = 0; h < heads_.size(); ++h) heads_[h].lag = most - counts[h];
  sort_heads();
}

void HeadBlocks::take_apart(std::byte* base, std::span<const uint32_t> counts) noexcept {
  const uint32_t most = *std::max_element(counts.begin(), counts.end());
  uint64_t end = 0;
  for (uint32_t block = 0; block * kKvBlockSlots < most; ++block) {
    for (size_t i = 0; i < group_->layers.size(); ++i)
      end = unpack_layer(base, i, block, counts, end);
  }
  move_blocks(base, end, counts);
}

void HeadBlocks::put_in_order(std::byte* base, uint64_t held,
                              std::span<const uint32_t> counts) noexcept {
  move_blocks(base, held, counts);
}

uint64_t HeadBlocks::name_in_place(std::span<const uint32_t> counts) noexcept {
  const uint64_t n = div_up(*std::max_element(counts.begin(), counts.end()), kKvBlockSlots);
  for (uint32_t h = 0; h < n_heads(); ++h) {
    const uint64_t first =
        group_->layers[heads_[h].layer].k_offset + heads_[h].index * heads_[h].block_bytes;
    for (uint64_t b = 0; b < n; ++b) table(h)[b] = b * group_->block_stride + first;
  }
  return n * group_->block_stride;
}

std::span<uint32_t> HeadBlocks::plan_moves(uint64_t held,
                                           std::span<const uint32_t> counts) noexcept {
  const uint64_t n_units = held / unit_;
  std::fill(targets(), targets() + n_units, kNoUnit);
  adopt_counts(counts);
  const uint32_t most = *std::max_element(counts.begin(), counts.end());
  each_block(most, [&](uint32_t head, uint64_t block, uint64_t at) {
    const uint64_t from = table(head)[block] / unit_, n = heads_[head].block_bytes / unit_;
    for (uint64_t i = 0; i < n; ++i) targets()[from + i] = static_cast<uint32_t>(at / unit_ + i);
  });
  return {targets(), n_units};
}

/// Blocks that the tables name go to where those with new lags belong.
void HeadBlocks::move_blocks(std::byte* base, uint64_t held,
                             std::span<const uint32_t> counts) noexcept {
  move_units(base, plan_moves(held, counts).size());
}

/// Every unit with a target goes there. One that is in the way goes on to its own.
void HeadBlocks::move_units(std::byte* base, uint64_t n_units) noexcept {
  uint32_t* to = targets();
  const auto unit = [&](uint64_t i) { return base + i * unit_; };
  for (uint64_t first = 0; first < n_units; ++first) {
    if (to[first] == kNoUnit || to[first] == first) continue;
    std::memcpy(desk(), unit(first), unit_);
    uint32_t at = to[first];
    to[first] = kNoUnit;
    while (at < n_units && to[at] != kNoUnit && to[at] != at) {
      std::swap_ranges(desk(), desk() + unit_, unit(at));
      const uint32_t next = to[at];
      to[at] = at;  // it is there
      at = next;
    }
    std::memcpy(unit(at), desk(), unit_);
    if (at < n_units) to[at] = at;
  }
}

}  // namespace sharpi
