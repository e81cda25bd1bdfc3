// SPDX-License-Identifier: MIT
// A session's rows on their way to its archive in host memory and back (tier/remote_rows.h). The
// way out is a stage, device memory and as much that is pinned, priced with the session: kernels
// gather rows there as the archive has them, and what is there crosses as one block. Of the archive
// the device keeps bounds of keys alone, which a recall brings up to date (recall.h).
// Thread rule: one owner (the session). Work runs on the model's stream and has ended when a call
// returns.
#pragma once

#include <cstdint>
#include <span>

#include "device/device.h"
#include "device/memory.h"
#include "kv/kv_layout.h"
#include "tier/remote_rows.h"

namespace sharpi::device {

class DeviceSession;

/// Bytes of the stage of a session with such a layout: as many as its largest layer needs, within
/// limits.
uint64_t archive_stage_bytes(const KvLayout& layout);

/// Of a block of one head.
inline uint64_t bounds_bytes(uint32_t head_dim) {
  return uint64_t{2} * head_dim * sizeof(uint16_t);
}
/// Of all blocks of the layers here, for an archive of so many rows a head.
uint64_t archive_bounds_bytes(const KvLayout& layout, uint32_t archive_rows);

class ArchiveRows final : public RemoteRows {
 public:
  /// `device`, `stream` and `session` outlive it.
  ArchiveRows(const Device& device, const Queue& stream, DeviceSession& session)
      : device_(device), stream_(stream), own_(session) {}
  /// archive_stage_bytes() and archive_bounds_bytes(), or 0.
  Status allocate(uint64_t stage_bytes, uint64_t bounds_bytes);
  uint64_t stage_bytes() const { return on_device_.bytes(); }
  uint64_t bounds_bytes() const { return bounds_.bytes(); }
  /// [heads][n_blocks][2][head_dim] of a layer of full attention, bf16; n_blocks: the archive's.
  std::byte* bounds(uint32_t layer, uint32_t n_blocks) const;

  Status read(uint32_t layer, std::span<const RowsOfHead> lists, RowTaker& to) override;
  void exchange(uint32_t layer, std::span<const HeadExchange> heads, const RowArchive& archive,
                ScoreScratch& scratch, RowTaker& to) noexcept override;

 private:
  struct Piece;
  uint64_t fill(uint32_t layer, std::span<const RowsOfHead> lists, Piece* piece) const;
  Status bring(uint32_t layer, std::span<const RowsOfHead> lists, Piece* piece, RowTaker& to);
  const Device& device_;
  const Queue& stream_;
  DeviceSession& own_;
  DeviceBuffer on_device_;
  PinnedBuffer on_host_;
  DeviceBuffer bounds_;
};

}  // namespace sharpi::device
