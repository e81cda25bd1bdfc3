// SPDX-License-Identifier: MIT
// A session's rows on their way to its archive and back (tier/remote_rows.h). The archive is pinned
// host memory, a block for each layer, which kernels read and write in place: the host copies no
// row, and makes lists alone. The way out is over a stage, device memory and as much that is
// pinned, where rows are put together before they cross. Bounds of keys are on the device, and
// kernels make them. All is priced with the session. Thread rule: one owner (the session). Work
// runs on the model's stream and has ended when a call returns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/memory.h"
#include "kv/kv_layout.h"
#include "model/model_spec.h"
#include "plan/shapes.h"
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

/// Pinned bytes of the archive's rows of the layers here, and what they hold.
struct LentBytes {
  uint64_t bytes = 0, held = 0;
};
LentBytes lent_bytes(const Device& device, const KvLayout& layout, const ModelSpec& spec,
                     const SessionShape& session);

class ArchiveRows final : public RemoteRows {
 public:
  /// `device`, `stream` and `session` outlive it.
  ArchiveRows(const Device& device, const Queue& stream, DeviceSession& session)
      : device_(device), stream_(stream), own_(session) {}
  /// archive_stage_bytes(), archive_bounds_bytes() and lent_bytes(), or nothing.
  Status allocate(const ModelSpec& spec, const SessionShape& session);
  uint64_t stage_bytes() const { return on_device_.bytes(); }
  uint64_t bounds_bytes() const { return bounds_.bytes(); }
  LentBytes lent_bytes() const;
  /// [heads][blocks of the archive][2][head_dim] of a layer of full attention, bf16.
  std::byte* bounds(uint32_t layer) const;
  std::byte* bounds(uint32_t layer, uint32_t head) const;
  uint32_t blocks_of_head() const { return n_blocks_; }
  /// Where kernels see what the archive has of a layer.
  std::byte* seen(uint32_t layer, const void* host) const;

  std::byte* lent(uint32_t layer) const override { return lent_[layer].data(); }
  Status send(uint32_t layer, std::span<const RowsOfHead> lists,
              const RowArchive& archive) override;
  void exchange(uint32_t layer, std::span<const HeadExchange> heads, const RowArchive& archive,
                ScoreScratch& scratch) noexcept override;
  Status copy_from(const RemoteRows& from) override;

 private:
  struct Piece;
  uint64_t fill(uint32_t layer, std::span<const RowsOfHead> lists, Piece* piece) const;
  Status send_piece(uint32_t layer, std::span<const RowsOfHead> lists, const RowArchive& archive,
                    Piece* piece);
  const Device& device_;
  const Queue& stream_;
  DeviceSession& own_;
  uint32_t n_blocks_ = 0;
  DeviceBuffer on_device_;
  PinnedBuffer on_host_;
  DeviceBuffer bounds_;
  std::vector<PinnedBuffer> lent_;  // by layer
};

}  // namespace sharpi::device
