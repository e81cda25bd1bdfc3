// SPDX-License-Identifier: MIT
#include "device/archive_rows.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "device/kernels.h"
#include "device/recall.h"
#include "device/session.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kMostStage = 4 << 20, kAlign = 16, kBoundsAlign = 256;
constexpr uint32_t kListsAtOnce = 16;
constexpr uint64_t kJobs = RowCopies::bytes_of(kListsAtOnce * RowCopies::kJobsOfHead, 0);
/// What a list takes beside its rows: three blocks are aligned.
constexpr uint64_t kListBytes = 4 * kAlign;

/// A row of a head, its score, and its slot in a list.
uint64_t bytes_of_row(const KvLayerLayout& l) {
  return (l.k_row_bytes + l.v_row_bytes) / l.n_heads + sizeof(float) + sizeof(uint32_t);
}

}  // namespace

uint64_t archive_stage_bytes(const KvLayout& layout) {
  uint64_t row = 0, all = 0;
  for (const KvGroup& g : layout.groups) {
    for (const KvLayerLayout& l : g.layers) {
      if (g.ring) break;
      row = std::max(row, bytes_of_row(l));
      all = std::max(all, l.n_heads * (g.capacity * bytes_of_row(l) + kListBytes));
    }
  }
  if (row == 0) return 0;
  return kJobs + round_up(std::clamp(all, row + kListBytes, std::max(kMostStage, row + kListBytes)),
                          kAlign);
}

uint64_t archive_bounds_bytes(const KvLayout& layout, uint32_t archive_rows) {
  const uint64_t blocks = div_up(archive_rows, kArchiveBlock);
  uint64_t bytes = 0;
  for (const KvGroup& g : layout.groups) {
    for (const KvLayerLayout& l : g.layers)
      bytes += g.ring ? 0 : round_up(l.n_heads * blocks * bounds_bytes(l.head_dim), kBoundsAlign);
  }
  return bytes;
}

/// What crosses at once.
struct ArchiveRows::Piece {
  struct Part {
    uint32_t list = 0, first = 0, n = 0;
  };
  std::array<Part, kListsAtOnce> parts;
  uint32_t n_parts = 0;
  uint32_t next_list = 0, next_row = 0;  // where the next piece begins
};

Status ArchiveRows::allocate(uint64_t stage_bytes, uint64_t bounds_bytes) {
  SHARPI_TRY_ASSIGN(on_device_,
                    DeviceBuffer::allocate(device_, stage_bytes, "stage of the archive"));
  SHARPI_TRY_ASSIGN(on_host_, PinnedBuffer::allocate(device_, stage_bytes, "stage of the archive"));
  SHARPI_TRY_ASSIGN(bounds_,
                    DeviceBuffer::allocate(device_, bounds_bytes, "bounds of archived rows"));
  return Status::ok();
}

std::byte* ArchiveRows::bounds(uint32_t layer, uint32_t n_blocks) const {
  uint64_t at = 0;
  for (const KvGroup& g : own_.layout().groups) {
    for (const KvLayerLayout& l : g.layers) {
      if (g.ring) break;
      if (l.layer == layer) return bounds_.data() + at;
      at +=
          round_up(uint64_t{l.n_heads} * n_blocks * device::bounds_bytes(l.head_dim), kBoundsAlign);
    }
  }
  return nullptr;
}

/// As many rows from next_list and next_row on as the stage takes; how many slots they list.
uint64_t ArchiveRows::fill(uint32_t layer, std::span<const RowsOfHead> lists, Piece* piece) const {
  const uint64_t row = bytes_of_row(*own_.layout().find(layer));
  uint64_t left = on_device_.bytes() - kJobs, n_listed = 0;
  piece->n_parts = 0;
  while (piece->next_list < lists.size() && piece->n_parts < kListsAtOnce &&
         left >= row + kListBytes) {
    const auto rest = lists[piece->next_list].slots.size() - piece->next_row;
    const auto n = static_cast<uint32_t>(std::min<uint64_t>(rest, (left - kListBytes) / row));
    piece->parts[piece->n_parts++] = {piece->next_list, piece->next_row, n};
    left -= n * row + kListBytes;
    n_listed += n;
    piece->next_row += n;
    if (n == rest) {
      ++piece->next_list;
      piece->next_row = 0;
    }
  }
  return n_listed;
}

Status ArchiveRows::read(uint32_t layer, std::span<const RowsOfHead> lists, RowTaker& to) {
  SHARPI_TRY(device_.usable());
  const DeviceScope scope(device_);
  SHARPI_TRY(own_.send_tables());
  for (Piece piece; piece.next_list < lists.size();) SHARPI_TRY(bring(layer, lists, &piece, to));
  return Status::ok();
}

Status ArchiveRows::bring(uint32_t layer, std::span<const RowsOfHead> lists, Piece* piece,
                          RowTaker& to) {
  const KvLayerLayout& layout = *own_.layout().find(layer);
  const uint64_t n_listed = fill(layer, lists, piece);
  RowCopies copies(on_host_.data(), on_device_.data(), piece->n_parts * RowCopies::kJobsOfHead);
  const uint64_t begin =
      round_up(RowCopies::bytes_of(piece->n_parts * RowCopies::kJobsOfHead, n_listed), kAlign);
  uint64_t at = begin;
  std::array<ArrivedRows, kListsAtOnce> arrived;
  for (uint32_t i = 0; i < piece->n_parts; ++i) {
    const Piece::Part& part = piece->parts[i];
    const RowsOfHead& of = lists[part.list];
    const RowCopies::Rows rows{part.n, copies.list(of.slots.subspan(part.first, part.n)), false};
    const StoredHead stored = stored_head(own_, layer, of.head);
    for (const bool value : layout.sides()) {
      copies.add(stored, value, on_device_.data() + at, rows);
      arrived[i].sides[value] = on_host_.data() + at;
      const uint64_t bytes = (value ? layout.v_row_bytes : layout.k_row_bytes) / layout.n_heads;
      at = round_up(at + part.n * bytes, kAlign);
    }
    uint64_t stride = 0;
    float* scores = own_.replay_scores(layer, &stride);
    if (scores == nullptr) continue;
    copies.add(reinterpret_cast<std::byte*>(scores + of.head * stride), sizeof(float),
               on_device_.data() + at, rows);
    arrived[i].scores = reinterpret_cast<const float*>(on_host_.data() + at);
    at = round_up(at + part.n * sizeof(float), kAlign);
  }
  SHARPI_TRY(stream_.copy(on_device_.data(), on_host_.data(), copies.bytes(), Way::kToDevice,
                          "upload of evicted slots"));
  SHARPI_TRY(device_.kernels().copy_rows(copies.params(), stream_));
  SHARPI_TRY(stream_.copy(on_host_.data() + begin, on_device_.data() + begin, at - begin,
                          Way::kToHost, "reading evicted rows"));
  SHARPI_TRY(stream_.wait());
  for (uint32_t i = 0; i < piece->n_parts; ++i)
    to.take(piece->parts[i].list, piece->parts[i].first, piece->parts[i].n, arrived[i]);
  return Status::ok();
}

/// As apply_moves(): what was checked and does not run is a fault of the device.
void ArchiveRows::exchange(uint32_t layer, std::span<const HeadExchange> heads,
                           const RowArchive& archive, ScoreScratch& scratch,
                           RowTaker& to) noexcept {
  if (heads.empty()) return;
  const Status done =
      exchange_rows(own_, layer, heads, archive, static_cast<DeviceScoreScratch&>(scratch), to);
  if (!done.is_ok()) device_.mark_lost(done.native());
}

}  // namespace sharpi::device
