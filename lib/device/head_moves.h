// SPDX-License-Identifier: MIT
// Rows of a group on the device become blocks of one KV head where they are, and blocks go to where
// they belong (kv/head_blocks.h): what a compaction by head does once rows have moved to the front
// of their heads. The memory of the lists of kept rows, which nobody reads any more, serves as
// room. Thread rule: one owner (the session). Work runs on the model's stream and has ended when a
// call returns.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "kv/kv_layout.h"

namespace sharpi::device {

/// Room for that in a session with such a layout.
uint64_t head_move_bytes(const KvLayout& layout);

class HeadMoves {
 public:
  /// `stage`: HeadTables::stage(); `room`: device memory of head_move_bytes() or more.
  HeadMoves(const Device& device, const Queue& stream, std::byte* stage, std::span<std::byte> room)
      : device_(device), stream_(stream), stage_(stage), room_(room) {}
  /// The first `n_blocks` blocks of the group's layers. No allocation.
  Status take_apart(const KvGroup& group, std::byte* base, uint32_t n_blocks) const;
  /// Units of unit_bytes go to their targets, which are used up. No allocation.
  Status move_units(std::span<uint32_t> targets, std::byte* base, uint64_t unit_bytes) const;

 private:
  Status send(uint64_t bytes) const;
  const Device& device_;
  const Queue& stream_;
  std::byte* stage_;
  std::span<std::byte> room_;
};

}  // namespace sharpi::device
