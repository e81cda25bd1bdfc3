// SPDX-License-Identifier: MIT
// The tables of a session's rows that are in blocks of one KV head (kv/head_blocks.h): in pinned
// host memory, where they are made and what is on its way to the device for moving rows stands, and
// on the device, where kernels read them through the KvHeadRows of every head (device/batch.h).
// Thread rule: one owner (the session). Copies run on the model's stream and have ended when a call
// returns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/batch.h"
#include "device/device.h"
#include "device/memory.h"
#include "kv/head_blocks.h"

namespace sharpi::device {

struct HeadTableBytes {
  uint64_t device = 0, pinned = 0;
};

class HeadTables {
 public:
  /// Bytes on their way to the device at a time, for moves.
  static constexpr uint64_t kStageBytes = 32768;

  /// `device` and `stream` outlive it.
  HeadTables(const Device& device, const Queue& stream) : device_(&device), stream_(&stream) {}
  /// What take() takes for these groups; those without heads need nothing.
  static HeadTableBytes bytes_of(std::span<const HeadBlocks> groups);
  Status take(std::span<HeadBlocks> groups);
  void drop(std::span<HeadBlocks> groups) noexcept;
  bool are_here() const { return on_device_.bytes() != 0; }
  HeadTableBytes bytes() const { return {on_device_.bytes(), on_host_.bytes()}; }

  /// Brings what the device has of a group, whose rows begin at `base`, up to date.
  Status send(uint32_t group, const HeadBlocks& heads, std::byte* base);
  /// On the device: of a group's head and those that follow it.
  const KvHeadRows* rows(uint32_t group, uint32_t head) const {
    return reinterpret_cast<const KvHeadRows*>(on_device_.data() + parts_[group].on_device) + head;
  }
  /// A view of a head of the group, for kernels.
  KvView on_device(uint32_t group, KvView v) const;
  /// Pinned memory of kStageBytes.
  std::byte* stage() const { return on_host_.data(); }

 private:
  struct Part {
    uint64_t on_host = 0, on_device = 0;  // KvHeadRows of the group, behind them its tables
    uint64_t rows_bytes = 0;              // of the KvHeadRows
    uint64_t sent = 0;                    // HeadBlocks::version() of what the device has
  };
  const Device* device_;
  const Queue* stream_;
  PinnedBuffer on_host_;
  DeviceBuffer on_device_;
  std::vector<Part> parts_;
};

}  // namespace sharpi::device
