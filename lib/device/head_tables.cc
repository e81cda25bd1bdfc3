// SPDX-License-Identifier: MIT
#include "device/head_tables.h"

#include "base/checked.h"
#include "device/session_copies.h"

namespace sharpi::device {
namespace {

uint64_t rows_bytes_of(const HeadBlocks& heads) {
  return heads.n_heads() * sizeof(KvHeadRows);
}
uint64_t host_bytes_of(const HeadBlocks& heads) {
  return heads.n_heads() == 0 ? 0 : round_up(rows_bytes_of(heads) + heads.plan_bytes(), 256);
}
uint64_t device_bytes_of(const HeadBlocks& heads) {
  return round_up(rows_bytes_of(heads) + heads.names().size() * sizeof(uint64_t), 256);
}

}  // namespace

HeadTableBytes HeadTables::bytes_of(std::span<const HeadBlocks> groups) {
  HeadTableBytes b;
  for (const HeadBlocks& heads : groups) {
    b.device += device_bytes_of(heads);
    b.pinned += host_bytes_of(heads);
  }
  if (b.device != 0) b.pinned += kStageBytes;
  return b;
}

Status HeadTables::take(std::span<HeadBlocks> groups) {
  if (are_here()) return Status::ok();
  const HeadTableBytes b = bytes_of(groups);
  if (b.device == 0) return Status::ok();
  parts_.assign(groups.size(), {});
  SHARPI_TRY_ASSIGN(DeviceBuffer there,
                    DeviceBuffer::allocate(*device_, b.device, "tables of rows by head"));
  SHARPI_TRY_ASSIGN(on_host_, PinnedBuffer::allocate(*device_, b.pinned, "tables of rows by head"));
  on_device_ = std::move(there);
  uint64_t on_host = kStageBytes, on_device = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (groups[g].n_heads() == 0) continue;
    parts_[g] = {on_host, on_device, rows_bytes_of(groups[g]), 0};
    groups[g].use(on_host_.data() + on_host + parts_[g].rows_bytes);
    on_host += host_bytes_of(groups[g]);
    on_device += device_bytes_of(groups[g]);
  }
  return Status::ok();
}

void HeadTables::drop(std::span<HeadBlocks> groups) noexcept {
  for (HeadBlocks& heads : groups) heads.use(nullptr);
  on_device_.reset();
  on_host_.reset();
}

Status HeadTables::send(uint32_t group, const HeadBlocks& heads, std::byte* base) {
  Part& part = parts_[group];
  if (part.sent == heads.version()) return Status::ok();
  auto* rows = reinterpret_cast<KvHeadRows*>(on_host_.data() + part.on_host);
  auto* names =
      reinterpret_cast<const uint64_t*>(on_device_.data() + part.on_device + part.rows_bytes);
  const uint64_t each = heads.names().size() / heads.n_heads();
  for (uint32_t h = 0; h < heads.n_heads(); ++h)
    rows[h] = {base, names + h * each, heads.v_offset(h), heads.lag(h), 0};
  SHARPI_TRY(SessionCopies(*device_, *stream_)
                 .bytes(on_device_.data() + part.on_device, rows,
                        part.rows_bytes + heads.names().size_bytes(), Way::kToDevice,
                        "upload of tables of rows by head"));
  part.sent = heads.version();
  return Status::ok();
}

KvView HeadTables::on_device(uint32_t group, KvView v) const {
  const auto* on_host = reinterpret_cast<const std::byte*>(v.table);
  const auto at = static_cast<uint64_t>(on_host - (on_host_.data() + parts_[group].on_host));
  v.table = reinterpret_cast<const uint64_t*>(on_device_.data() + parts_[group].on_device + at);
  return v;
}

}  // namespace sharpi::device
