// SPDX-License-Identifier: MIT
#include "kv/row_archive.h"

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi {
namespace {

/// Whether rows of a layer can come here.
bool has_rows(const LayerSpec& l) {
  return l.attends_to_all() != nullptr && l.owns_kv();
}

uint32_t widest_key(const ModelSpec& spec) {
  uint32_t dim = 0;
  for (const LayerSpec& l : spec.layers) {
    if (has_rows(l)) dim = std::max(dim, l.attention.head_dim);
  }
  return dim;
}

}  // namespace

/// In memory: positions, scores, K rows, V rows, bounds, head after head; and, behind all, one
/// decoded key.
std::vector<RowArchive::Head> RowArchive::heads_of(const ModelSpec& spec,
                                                   const std::vector<KvDtypePair>& dtypes,
                                                   uint32_t capacity, uint64_t* end) {
  std::vector<Head> out;
  uint64_t at = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    if (!has_rows(spec.layers[l])) continue;
    const AttentionSpec& a = spec.layers[l].attention;
    Head h;
    h.dim = a.head_dim;
    h.k_dtype = dtypes[l].k;
    h.k_bytes = static_cast<uint32_t>(kv_row_bytes(dtypes[l].k, a.head_dim));
    h.v_bytes = a.one_row() ? 0 : static_cast<uint32_t>(kv_row_bytes(dtypes[l].v, a.head_dim));
    const uint64_t rows = uint64_t{capacity} * (2 * sizeof(uint32_t) + h.k_bytes + h.v_bytes),
                   blocks = uint64_t{capacity} / kArchiveBlock * 2 * h.dim * sizeof(float);
    for (uint32_t i = 0; i < a.n_kv_heads; ++i) {
      h.first = at;
      out.push_back(h);
      at += round_up(rows, sizeof(float)) + blocks;
    }
  }
  *end = out.empty() ? 0 : at + widest_key(spec) * sizeof(float);
  return out;
}

uint64_t RowArchive::bytes_for(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                               uint32_t n_rows, uint32_t n_slots) {
  if (n_rows == 0) return 0;
  uint64_t end = 0;
  heads_of(spec, dtypes, static_cast<uint32_t>(round_up(n_rows, kArchiveBlock)), &end);
  return end + uint64_t{n_slots} * sizeof(uint32_t);
}

void RowArchive::reserve(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                         uint32_t n_rows, uint32_t n_slots) {
  RowArchive r;
  uint64_t end = 0;
  r.capacity_ = static_cast<uint32_t>(round_up(n_rows, kArchiveBlock));
  r.heads_ = heads_of(spec, dtypes, r.capacity_, &end);
  r.first_.resize(spec.n_layers());
  r.n_heads_.resize(spec.n_layers());
  uint32_t n = 0;
  for (uint32_t l = 0; l < spec.n_layers(); ++l) {
    r.first_[l] = n;
    r.n_heads_[l] = has_rows(spec.layers[l]) ? spec.layers[l].attention.n_kv_heads : 0;
    n += r.n_heads_[l];
  }
  r.memory_.resize(end);
  r.slots_.resize(n_slots);
  *this = std::move(r);
}

uint32_t* RowArchive::positions_of(const Head& h) const {
  return reinterpret_cast<uint32_t*>(memory_.data() + h.first);
}
float* RowArchive::scores_of(const Head& h) const {
  return reinterpret_cast<float*>(positions_of(h) + capacity_);
}
std::byte* RowArchive::rows_of(const Head& h, bool value) const {
  std::byte* k = reinterpret_cast<std::byte*>(scores_of(h) + capacity_);
  return value ? k + uint64_t{capacity_} * h.k_bytes : k;
}
float* RowArchive::bounds_of(const Head& h) const {
  const uint64_t rows = uint64_t{capacity_} * (2 * sizeof(uint32_t) + h.k_bytes + h.v_bytes);
  return reinterpret_cast<float*>(memory_.data() + h.first + round_up(rows, sizeof(float)));
}

std::span<const uint32_t> RowArchive::positions(uint32_t layer, uint32_t head) const {
  const Head& h = at(layer, head);
  return {positions_of(h), h.n_rows};
}

const std::byte* RowArchive::row(uint32_t layer, uint32_t head, bool value, uint32_t i) const {
  const Head& h = at(layer, head);
  return rows_of(h, value) + uint64_t{i} * h.row_bytes(value);
}

float RowArchive::score(uint32_t layer, uint32_t head, uint32_t i) const {
  return scores_of(at(layer, head))[i];
}

std::span<const float> RowArchive::bounds(uint32_t layer, uint32_t head, uint32_t block) const {
  const Head& h = at(layer, head);
  return {bounds_of(h) + uint64_t{block} * 2 * h.dim, size_t{2} * h.dim};
}

void RowArchive::move(const Head& h, uint32_t from, uint32_t to, uint32_t n) noexcept {
  if (from == to || n == 0) return;
  std::memmove(positions_of(h) + to, positions_of(h) + from, n * sizeof(uint32_t));
  std::memmove(scores_of(h) + to, scores_of(h) + from, n * sizeof(float));
  for (const bool value : {false, true}) {
    const uint64_t bytes = h.row_bytes(value);
    if (bytes == 0) continue;
    std::memmove(rows_of(h, value) + to * bytes, rows_of(h, value) + from * bytes, n * bytes);
  }
}

/// The bounds of all blocks from that of a row on.
void RowArchive::summarise(const Head& h, uint32_t first_row) noexcept {
  float* key = reinterpret_cast<float*>(memory_.data() + memory_.size()) - h.dim;
  const uint32_t rotation = kv_rotation(h.k_dtype, h.dim);
  for (uint32_t i = first_row / kArchiveBlock * kArchiveBlock; i < h.n_rows; ++i) {
    const std::byte* row = rows_of(h, false) + uint64_t{i} * h.k_bytes;
    const Status decoded = kv_decode_row(h.k_dtype, row, h.dim, 0, h.dim, key);
    if (!decoded.is_ok()) continue;  // the plan has checked the codec
    if (rotation != 0) kv_unrotate(key, h.dim, rotation);
    float* low = bounds_of(h) + uint64_t{i} / kArchiveBlock * 2 * h.dim;
    float* high = low + h.dim;
    const bool begins = i % kArchiveBlock == 0;
    for (uint32_t e = 0; e < h.dim; ++e) {
      low[e] = begins ? key[e] : std::min(low[e], key[e]);
      high[e] = begins ? key[e] : std::max(high[e], key[e]);
    }
  }
}

void RowArchive::insert(uint32_t layer, uint32_t head, uint32_t n, const Source& rows) noexcept {
  Head& h = at(layer, head);
  uint32_t* positions = positions_of(h);
  // What has no room goes: of both, the lowest positions.
  uint32_t gone = 0, skipped = 0;
  while (h.n_rows - gone + (n - skipped) > capacity_) {
    const bool old = gone < h.n_rows && (skipped == n || positions[gone] < rows.position(skipped));
    ++(old ? gone : skipped);
  }
  move(h, gone, 0, h.n_rows - gone);
  h.n_rows -= gone;
  // From the last row on: what is here moves behind where it was.
  uint32_t here = h.n_rows, more = n, to = h.n_rows + n - skipped, first = gone != 0 ? 0 : to;
  h.n_rows = to;
  while (more > skipped) {
    uint32_t run = 0;
    while (run < here && positions[here - 1 - run] > rows.position(more - 1)) ++run;
    move(h, here - run, to - run, run);
    here -= run;
    to -= run + 1;
    --more;
    positions[to] = rows.position(more);
    scores_of(h)[to] = rows.score(more);
    for (const bool value : {false, true}) {
      if (h.row_bytes(value) != 0)
        rows.read(more, value, rows_of(h, value) + uint64_t{to} * h.row_bytes(value));
    }
    first = std::min(first, to);
  }
  summarise(h, first);
}

void RowArchive::remove(uint32_t layer, uint32_t head, std::span<const uint32_t> rows) noexcept {
  if (rows.empty()) return;
  Head& h = at(layer, head);
  uint32_t to = rows.front();
  for (size_t i = 0; i < rows.size(); ++i) {
    const uint32_t from = rows[i] + 1, end = i + 1 < rows.size() ? rows[i + 1] : h.n_rows;
    move(h, from, to, end - from);
    to += end - from;
  }
  h.n_rows = to;
  summarise(h, rows.front());
}

void RowArchive::shift(uint32_t by, uint32_t least) noexcept {
  for (Head& h : heads_) {
    uint32_t* positions = positions_of(h);
    uint32_t gone = 0;
    while (gone < h.n_rows && positions[gone] < by + least) ++gone;
    move(h, gone, 0, h.n_rows - gone);
    h.n_rows -= gone;
    for (uint32_t i = 0; i < h.n_rows; ++i) positions[i] -= by;
    if (gone != 0) summarise(h, 0);
  }
}

void RowArchive::clear() noexcept {
  for (Head& h : heads_) h.n_rows = 0;
}

void RowArchive::copy_from(const RowArchive& from) noexcept {
  if (memory_.empty()) return;
  std::memcpy(memory_.data(), from.memory_.data(), memory_.size());
  std::copy(from.heads_.begin(), from.heads_.end(), heads_.begin());
}

}  // namespace sharpi
