// SPDX-License-Identifier: MIT
#include "device/flat_rows.h"

#include <cstring>

#include "device/session.h"

namespace sharpi::device {

FlatHead FlatHead::take(Pieces* from, const KvLayerLayout& l, uint64_t n) {
  FlatHead f;
  for (const bool value : l.sides())
    f.sides[value] = from->take(n * (value ? l.v_row_bytes : l.k_row_bytes) / l.n_heads).device;
  f.scores = from->take(n * sizeof(float)).device;
  return f;
}

KeyBounds::KeyBounds(const Pieces::Piece& jobs, const KvLayerLayout& layout)
    : to_(jobs.pinned), row_bytes_(layout.k_row_bytes / layout.n_heads) {
  params_.jobs = reinterpret_cast<const KeyBoundsJob*>(jobs.device);
  params_.dtype = layout.k_dtype;
  params_.head_dim = layout.head_dim;
}

void KeyBounds::add(const std::byte* keys, std::span<const uint32_t> places, std::byte* bounds) {
  const uint64_t of_block = uint64_t{2} * params_.head_dim * sizeof(uint16_t);
  for (size_t i = 0; i < places.size();) {
    const uint32_t block = (places[i] & ~kBegins) / kArchiveBlock;
    KeyBoundsJob job;
    job.keys = keys + i * row_bytes_;
    job.bounds = reinterpret_cast<uint16_t*>(bounds + block * of_block);
    job.row_bytes = row_bytes_;
    job.begins = (places[i] & kBegins) != 0 ? 1 : 0;
    for (; i < places.size() && (places[i] & ~kBegins) / kArchiveBlock == block; ++i) ++job.n;
    std::memcpy(to_ + params_.n_jobs++ * sizeof job, &job, sizeof job);
  }
}

StoredHead stored_head(const DeviceSession& session, uint32_t layer, uint32_t head) {
  if (session.is_layer_by_head(layer)) return {session.kernel_view(layer, head), 0};
  return {session.view(layer), head};
}

void add_rows(RowCopies* to, const DeviceSession& session, uint32_t layer, uint32_t head,
              const FlatHead& flat, const RowCopies::Rows& rows) {
  const StoredHead stored = stored_head(session, layer, head);
  for (const bool value : session.layout().find(layer)->sides())
    to->add(stored, value, flat.sides[value], rows);
  uint64_t stride = 0;
  if (float* scores = session.replay_scores(layer, &stride); scores != nullptr)
    to->add(reinterpret_cast<std::byte*>(scores + head * stride), sizeof(float), flat.scores, rows);
}

void add_archived(RowCopies* to, const DeviceSession& session, const RowArchive& archive,
                  uint32_t layer, uint32_t head, const FlatHead& flat,
                  const RowCopies::Rows& rows) {
  const ArchiveRows& lent = session.archive_rows();
  for (const bool value : session.layout().find(layer)->sides())
    to->add(lent.seen(layer, archive.row(layer, head, value, 0)), archive.row_bytes(layer, value),
            flat.sides[value], rows);
  uint64_t stride = 0;
  if (session.replay_scores(layer, &stride) == nullptr) return;
  to->add(lent.seen(layer, archive.scores(layer, head)), sizeof(float), flat.scores, rows);
}

}  // namespace sharpi::device
