// SPDX-License-Identifier: MIT
// KV rows in blocks of one head: 64 K rows of one KV head of one layer and then its 64 V rows, each
// row as a layer of one head would store it. A table names the blocks of every head, so heads may
// hold different numbers of rows. All blocks of a group of layers lie in the range of addresses
// that the group has anyway (kv_view.h), without gaps, and its committed prefix holds them.
//
// Slots of the group are those of its fullest head. A head that lags behind it by n rows has n rows
// less for good, since every token adds a row to each; so its slot s is as far from the end as slot
// s + n of the fullest head. Blocks lie in the order in which they become full, that is of the
// group's slot where they begin. So growing adds blocks behind the others, shrinking takes the last
// ones away, and the full ones, which forks share, come first, as it is with rows of all heads.
//
// Taking ranges apart into blocks and putting blocks into another order are done in place.
// Thread rule: one owner (the store).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_layout.h"

namespace sharpi {

class HeadBlocks {
 public:
  HeadBlocks() = default;
  /// Of a group that has up to most_slots slots. The tables are not there before use(). May throw
  /// std::bad_alloc.
  HeadBlocks(const KvGroup& group, uint32_t most_slots);
  /// Bytes of the tables, and of what moving needs.
  uint64_t table_bytes() const { return table_bytes_; }
  /// Without the desk of take_apart() and put_in_order(), for rows in memory that the host does not
  /// touch: name_in_place() and plan_moves() say what has to be done there.
  uint64_t plan_bytes() const { return desk_offset_; }
  /// Memory of so many bytes, aligned to 8; null takes it away.
  void use(std::byte* memory) {
    memory_ = memory;
    ++version_;
  }
  /// The tables, one head's behind the other's; changes when they, or lags, may have changed.
  std::span<const uint64_t> names() const { return {table(0), heads_.size() * blocks_of_head_}; }
  uint64_t version() const { return version_; }
  uint64_t v_offset(uint32_t head) const { return heads_[head].v_offset; }

  uint32_t n_heads() const { return static_cast<uint32_t>(heads_.size()); }  // of all layers
  uint32_t lag(uint32_t head) const { return heads_[head].lag; }
  /// The first head of the group's layer number i; the layer's others follow.
  uint32_t first_head(size_t layer) const { return first_head_[layer]; }
  /// Rows of a head, when the fullest one has n_slots.
  uint32_t rows(uint32_t head, uint32_t n_slots) const {
    return n_slots > heads_[head].lag ? n_slots - heads_[head].lag : 0;
  }

  /// Lags of all heads. What the tables say does not change. No allocation.
  void set_lags(std::span<const uint32_t> lags) noexcept;
  /// Bytes of the blocks that n_slots need, and of those that are full when n_slots rows are there.
  /// Rows from slot n on are behind full_bytes(n).
  uint64_t bytes(uint32_t n_slots) const { return bytes_with({}, n_slots); }
  uint64_t full_bytes(uint32_t n_slots) const;
  /// bytes() with other lags; empty = these.
  uint64_t bytes_with(std::span<const uint32_t> lags, uint32_t n_slots) const;
  /// The most slots, at most `most`, whose blocks fit into so many bytes.
  uint32_t slots_in(std::span<const uint32_t> lags, uint64_t bytes, uint32_t most) const;
  /// The first slot behind which nothing is in the first `bytes`; at most `most`.
  uint32_t slots_behind(uint64_t bytes, uint32_t most) const;
  /// Writes the tables for n_slots: what they said of blocks that stay is as it was.
  void name_blocks(uint32_t n_slots) noexcept;
  /// Rows of one head; `base`: where the group's range begins.
  KvView view(size_t layer, uint32_t head, std::byte* base) const;

  /// Rows of all heads, in ranges at `base`, of which head h of the group has its first counts[h]
  /// live, become blocks with the lags that follow.
  void take_apart(std::byte* base, std::span<const uint32_t> counts) noexcept;
  /// Blocks, of which head h has its first counts[h] rows live, become those with the lags that
  /// follow. `held`: bytes of the blocks that there are.
  void put_in_order(std::byte* base, uint64_t held, std::span<const uint32_t> counts) noexcept;

  /// The same in steps. Where blocks of heads lie after the rows of a layer's heads in every block
  /// of the group have been taken apart where they are: K and V of its first head, of its next one
  /// and so on. Returns the bytes that all of them take.
  uint64_t name_in_place(std::span<const uint32_t> counts) noexcept;
  /// Lags become those that follow from the counts. Where the units of blocks that the tables name
  /// have to go (kv/unit_moves.h); the tables are right after name_blocks().
  std::span<uint32_t> plan_moves(uint64_t held, std::span<const uint32_t> counts) noexcept;
  /// Bytes of a unit.
  uint64_t unit() const { return unit_; }

 private:
  struct Head {
    uint32_t layer = 0, index = 0;  // of the group's layers; of the layer's heads
    uint64_t block_bytes = 0, v_offset = 0;
    uint32_t lag = 0;
  };
  uint64_t* table(uint32_t head) const {
    return reinterpret_cast<uint64_t*>(memory_) + uint64_t{head} * blocks_of_head_;
  }
  uint32_t* targets() const {
    return reinterpret_cast<uint32_t*>(table(static_cast<uint32_t>(heads_.size())));
  }
  std::byte* desk() const { return memory_ + desk_offset_; }
  template <class Visit>
  void each_block(uint32_t n_slots, Visit&& visit) const;
  uint64_t unpack_layer(std::byte* base, size_t layer, uint32_t block,
                        std::span<const uint32_t> counts, uint64_t to) noexcept;
  void move_blocks(std::byte* base, uint64_t held, std::span<const uint32_t> counts) noexcept;
  void move_units(std::byte* base, uint64_t n_units) noexcept;
  void sort_heads() noexcept;
  void adopt_counts(std::span<const uint32_t> counts) noexcept;

  const KvGroup* group_ = nullptr;
  std::vector<Head> heads_;
  std::vector<uint32_t> first_head_;  // per layer
  std::vector<uint32_t> order_;       // heads by where in a block of the group's theirs begin
  uint64_t blocks_of_head_ = 0;       // in a table
  uint64_t unit_ = 0;                 // bytes of which every block has a whole number
  uint64_t table_bytes_ = 0, desk_offset_ = 0;
  uint64_t version_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace sharpi
