// SPDX-License-Identifier: MIT
#include "device/archive_rows.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "device/flat_rows.h"
#include "device/kernels.h"
#include "device/recall.h"
#include "device/session.h"

namespace sharpi::device {
namespace {

constexpr uint64_t kMostStage = 4 << 20, kAlign = Pieces::kAlign;
constexpr uint32_t kListsAtOnce = 16;
constexpr uint64_t kJobs =
    2 * round_up(RowCopies::bytes_of(kListsAtOnce * RowCopies::kJobsOfHead, 0), kAlign);
/// What a list takes beside its rows, and what all lists of a piece do: their blocks are aligned.
constexpr uint64_t kListBytes = 3 * kAlign, kPieceBytes = kJobs + 3 * kAlign;

/// A row of a head, its score, its slots in two lists and, at most, its part of the bounds.
uint64_t bytes_of_row(const KvLayerLayout& l) {
  return (l.k_row_bytes + l.v_row_bytes) / l.n_heads + sizeof(float) + 2 * sizeof(uint32_t) +
         KeyBounds::bytes_of(1);
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
  const uint64_t least = row + kListBytes;
  return kPieceBytes + round_up(std::clamp(all, least, std::max(kMostStage, least)), kAlign);
}

uint64_t archive_bounds_bytes(const KvLayout& layout, uint32_t archive_rows) {
  const uint64_t blocks = div_up(archive_rows, kArchiveBlock);
  uint64_t bytes = 0;
  for (const KvGroup& g : layout.groups) {
    for (const KvLayerLayout& l : g.layers)
      bytes += g.ring ? 0 : round_up(l.n_heads * blocks * bounds_bytes(l.head_dim), kAlign);
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

LentBytes lent_bytes(const Device& device, const KvLayout& layout, const ModelSpec& spec,
                     const SessionShape& session) {
  LentBytes all;
  for (const KvGroup& g : layout.groups) {
    for (const KvLayerLayout& l : g.layers) {
      const uint64_t bytes =
          g.ring ? 0 : RowArchive::lent_bytes(spec, session.dtypes, l.layer, session.archive_rows);
      all.bytes += bytes;
      all.held += bytes == 0 ? 0 : device.pinned_held_bytes(bytes);
    }
  }
  return all;
}

Status ArchiveRows::allocate(const ModelSpec& spec, const SessionShape& session) {
  if (session.archive_rows == 0) return Status::ok();
  const KvLayout& layout = own_.layout();
  const uint64_t stage = archive_stage_bytes(layout);
  n_blocks_ = static_cast<uint32_t>(div_up(session.archive_rows, kArchiveBlock));
  SHARPI_TRY_ASSIGN(on_device_, DeviceBuffer::allocate(device_, stage, "stage of the archive"));
  SHARPI_TRY_ASSIGN(on_host_, PinnedBuffer::allocate(device_, stage, "stage of the archive"));
  SHARPI_TRY_ASSIGN(
      bounds_, DeviceBuffer::allocate(device_, archive_bounds_bytes(layout, session.archive_rows),
                                      "bounds of archived rows"));
  lent_.resize(spec.n_layers());
  for (const KvGroup& g : layout.groups) {
    for (const KvLayerLayout& l : g.layers) {
      const uint64_t bytes =
          g.ring ? 0 : RowArchive::lent_bytes(spec, session.dtypes, l.layer, session.archive_rows);
      SHARPI_TRY_ASSIGN(lent_[l.layer],
                        PinnedBuffer::allocate(device_, bytes, "archive of evicted rows"));
      if (bytes != 0) SHARPI_TRY(device_.kernels().prepare_archive(l.k_dtype, l.head_dim, stream_));
    }
  }
  return Status::ok();
}

LentBytes ArchiveRows::lent_bytes() const {
  LentBytes all;
  for (const PinnedBuffer& b : lent_) {
    all.bytes += b.bytes();
    all.held += b.bytes() == 0 ? 0 : device_.pinned_held_bytes(b.bytes());
  }
  return all;
}

std::byte* ArchiveRows::bounds(uint32_t layer) const {
  uint64_t at = 0;
  for (const KvGroup& g : own_.layout().groups) {
    for (const KvLayerLayout& l : g.layers) {
      if (g.ring) break;
      if (l.layer == layer) return bounds_.data() + at;
      at += round_up(uint64_t{l.n_heads} * n_blocks_ * device::bounds_bytes(l.head_dim), kAlign);
    }
  }
  return nullptr;
}

std::byte* ArchiveRows::bounds(uint32_t layer, uint32_t head) const {
  const uint64_t of_block = device::bounds_bytes(own_.layout().find(layer)->head_dim);
  return bounds(layer) + uint64_t{head} * n_blocks_ * of_block;
}

std::byte* ArchiveRows::seen(uint32_t layer, const void* host) const {
  std::byte* const base = lent_[layer].data();
  return device_.seen_by_kernels(base) + (static_cast<const std::byte*>(host) - base);
}

/// As many rows from next_list and next_row on as the stage takes; how many slots they list.
uint64_t ArchiveRows::fill(uint32_t layer, std::span<const RowsOfHead> lists, Piece* piece) const {
  const uint64_t row = bytes_of_row(*own_.layout().find(layer));
  uint64_t left = on_device_.bytes() - kPieceBytes, n_listed = 0;
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

Status ArchiveRows::send(uint32_t layer, std::span<const RowsOfHead> lists,
                         const RowArchive& archive) {
  SHARPI_TRY(device_.usable());
  const DeviceScope scope(device_);
  SHARPI_TRY(own_.send_tables());
  for (Piece piece; piece.next_list < lists.size();)
    SHARPI_TRY(send_piece(layer, lists, archive, &piece));
  return Status::ok();
}

/// Put together on the device, from where the archive takes them.
Status ArchiveRows::send_piece(uint32_t layer, std::span<const RowsOfHead> lists,
                               const RowArchive& archive, Piece* piece) {
  const KvLayerLayout& layout = *own_.layout().find(layer);
  const uint64_t n_listed = fill(layer, lists, piece);
  if (piece->n_parts == 0)
    return Status::error(Code::kInternal, "the stage of the archive has no room for a row");
  const uint32_t most_jobs = piece->n_parts * RowCopies::kJobsOfHead;
  Pieces pieces(on_device_.data(), on_host_.data());
  const Pieces::Piece read_jobs = pieces.take(RowCopies::bytes_of(most_jobs, n_listed)),
                      write_jobs = pieces.take(RowCopies::bytes_of(most_jobs, n_listed)),
                      key_jobs = pieces.take(KeyBounds::bytes_of(n_listed));
  const uint64_t sent = pieces.taken();
  RowCopies reads(read_jobs.pinned, read_jobs.device, most_jobs),
      writes(write_jobs.pinned, write_jobs.device, most_jobs);
  KeyBounds keys(key_jobs, layout);
  for (uint32_t i = 0; i < piece->n_parts; ++i) {
    const Piece::Part& part = piece->parts[i];
    const RowsOfHead& of = lists[part.list];
    const std::span<const uint32_t> places = of.places.subspan(part.first, part.n);
    const FlatHead flat = FlatHead::take(&pieces, layout, part.n);
    add_rows(&reads, own_, layer, of.head, flat,
             {part.n, reads.list(of.slots.subspan(part.first, part.n)), false});
    add_archived(&writes, own_, archive, layer, of.head, flat,
                 {part.n, writes.list_of_places(places), true});
    keys.add(flat.sides[0], places, bounds(layer, of.head));
  }
  const DeviceKernels& kernels = device_.kernels();
  SHARPI_TRY(stream_.copy(on_device_.data(), on_host_.data(), sent, Way::kToDevice,
                          "upload of evicted slots"));
  SHARPI_TRY(kernels.copy_rows(reads.params(), stream_));
  SHARPI_TRY(kernels.copy_rows(writes.params(), stream_));
  SHARPI_TRY(kernels.bound_keys(keys.params(), stream_));
  return stream_.wait();
}

/// As apply_moves(): what was checked and does not run is a fault of the device.
void ArchiveRows::exchange(uint32_t layer, std::span<const HeadExchange> heads,
                           const RowArchive& archive, ScoreScratch& scratch) noexcept {
  if (heads.empty()) return;
  const Status done =
      exchange_rows(own_, layer, heads, archive, static_cast<DeviceScoreScratch&>(scratch));
  if (!done.is_ok()) device_.mark_lost(done.native());
}

Status ArchiveRows::copy_from(const RemoteRows& from) {
  if (bounds_.bytes() == 0) return Status::ok();
  SHARPI_TRY(device_.usable());
  const DeviceScope scope(device_);
  SHARPI_TRY(stream_.copy(bounds_.data(), static_cast<const ArchiveRows&>(from).bounds_.data(),
                          bounds_.bytes(), Way::kWithin, "copying bounds"));
  return stream_.wait();
}

}  // namespace sharpi::device
