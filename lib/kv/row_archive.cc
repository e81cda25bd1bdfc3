// SPDX-License-Identifier: MIT
#include "kv/row_archive.h"

#include <algorithm>
#include <bit>
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

uint32_t most_heads(const ModelSpec& spec) {
  uint32_t n = 0;
  for (const LayerSpec& l : spec.layers) {
    if (has_rows(l)) n = std::max(n, l.attention.n_kv_heads);
  }
  return n;
}

/// A number that is at most (or, if `up`, at least) x, in bf16.
uint16_t rounded(float x, bool up) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const bool away = (bits & 0xFFFF) != 0 && (x > 0) == up;
  return static_cast<uint16_t>((bits >> 16) + (away ? 1 : 0));
}

/// Bytes of a head's rows, and of what there is for each block.
uint64_t all_row_bytes(uint64_t capacity, uint64_t row_bytes) {
  return round_up(capacity * (2 * sizeof(uint32_t) + row_bytes), sizeof(float));
}
uint64_t all_block_bytes(uint64_t capacity, uint64_t dim) {
  return round_up(capacity / kArchiveBlock * (2 * dim * sizeof(uint16_t) + 1), sizeof(float));
}

}  // namespace

/// In memory: positions, scores, K rows, V rows, bounds, marks of change, head after head; and,
/// behind all, one decoded key and its bounds.
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
    for (uint32_t i = 0; i < a.n_kv_heads; ++i) {
      h.first = at;
      out.push_back(h);
      at += all_row_bytes(capacity, h.k_bytes + h.v_bytes) + all_block_bytes(capacity, h.dim);
    }
  }
  *end = out.empty() ? 0 : at + 3 * widest_key(spec) * sizeof(float);
  return out;
}

uint64_t RowArchive::bytes_for(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                               uint32_t n_rows, uint32_t n_slots) {
  if (n_rows == 0) return 0;
  uint64_t end = 0;
  heads_of(spec, dtypes, static_cast<uint32_t>(round_up(n_rows, kArchiveBlock)), &end);
  return end + uint64_t{n_slots} * most_heads(spec) * sizeof(uint32_t);
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
  r.n_slots_ = n_slots;
  r.slots_.resize(uint64_t{n_slots} * most_heads(spec));
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
uint16_t* RowArchive::bounds_of(const Head& h) const {
  const uint64_t rows = all_row_bytes(capacity_, h.k_bytes + h.v_bytes);
  return reinterpret_cast<uint16_t*>(memory_.data() + h.first + rows);
}
uint8_t* RowArchive::changed_of(const Head& h) const {
  return reinterpret_cast<uint8_t*>(bounds_of(h) + uint64_t{capacity_} / kArchiveBlock * 2 * h.dim);
}

std::span<const uint32_t> RowArchive::positions(uint32_t layer, uint32_t head) const {
  const Head& h = at(layer, head);
  return {positions_of(h), h.end};
}

const std::byte* RowArchive::row(uint32_t layer, uint32_t head, bool value, uint32_t slot) const {
  const Head& h = at(layer, head);
  return rows_of(h, value) + uint64_t{slot} * h.row_bytes(value);
}

float RowArchive::score(uint32_t layer, uint32_t head, uint32_t slot) const {
  return scores_of(at(layer, head))[slot];
}

std::span<const uint16_t> RowArchive::bounds(uint32_t layer, uint32_t head, uint32_t block) const {
  const Head& h = at(layer, head);
  return {bounds_of(h) + uint64_t{block} * 2 * h.dim, size_t{2} * h.dim};
}

std::span<uint8_t> RowArchive::changed(uint32_t layer, uint32_t head) {
  const Head& h = at(layer, head);
  return {changed_of(h), capacity_ / kArchiveBlock};
}

/// The bounds of a block's rows.
void RowArchive::summarise(const Head& h, uint32_t block) noexcept {
  float* key = reinterpret_cast<float*>(memory_.data() + memory_.size()) - 3 * h.dim;
  float *low = key + h.dim, *high = low + h.dim;
  const uint32_t rotation = kv_rotation(h.k_dtype, h.dim);
  bool begins = true;
  for (uint32_t slot = block * kArchiveBlock; slot < std::min((block + 1) * kArchiveBlock, h.end);
       ++slot) {
    if (positions_of(h)[slot] == kNoRow) continue;
    const std::byte* row = rows_of(h, false) + uint64_t{slot} * h.k_bytes;
    const Status decoded = kv_decode_row(h.k_dtype, row, h.dim, 0, h.dim, key);
    if (!decoded.is_ok()) continue;  // the plan has checked the codec
    if (rotation != 0) kv_unrotate(key, h.dim, rotation);
    for (uint32_t e = 0; e < h.dim; ++e) {
      low[e] = begins ? key[e] : std::min(low[e], key[e]);
      high[e] = begins ? key[e] : std::max(high[e], key[e]);
    }
    begins = false;
  }
  if (begins) return;
  uint16_t* bounds = bounds_of(h) + uint64_t{block} * 2 * h.dim;
  for (uint32_t e = 0; e < h.dim; ++e) {
    bounds[e] = rounded(low[e], false);
    bounds[h.dim + e] = rounded(high[e], true);
  }
  changed_of(h)[block] = 1;
}

void RowArchive::drop_below(Head* h, uint32_t position) noexcept {
  uint32_t* positions = positions_of(*h);
  for (uint32_t slot = 0; slot < h->end; ++slot) {
    if (positions[slot] >= position) continue;  // free ones, too
    positions[slot] = kNoRow;
    --h->n_rows;
  }
}

/// What has no room with n more rows goes: of both, the lowest positions. How many of the n go.
uint32_t RowArchive::make_room(Head* h, uint32_t n, const Source& rows) noexcept {
  if (h->n_rows + n <= capacity_) return 0;
  const uint32_t gone = h->n_rows + n - capacity_;
  const uint32_t* positions = positions_of(*h);
  // No two positions are equal: below one of them there are exactly as many.
  uint32_t low = 0, high = kNoRow, skipped = 0;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    uint32_t below = 0;
    for (uint32_t slot = 0; slot < h->end; ++slot) below += positions[slot] < middle ? 1 : 0;
    skipped = 0;
    while (skipped < n && rows.position(skipped) < middle) ++skipped;
    if (below + skipped < gone)
      low = middle + 1;
    else
      high = middle;
  }
  skipped = 0;
  while (skipped < n && rows.position(skipped) < low) ++skipped;
  drop_below(h, low);
  return skipped;
}

void RowArchive::insert(uint32_t layer, uint32_t head, uint32_t n, const Source& rows) noexcept {
  Head& h = at(layer, head);
  uint32_t* positions = positions_of(h);
  uint32_t slot = 0, block = kNoRow;
  for (uint32_t i = make_room(&h, n, rows); i < n; ++i, ++slot) {
    while (slot < h.end && positions[slot] != kNoRow) ++slot;
    h.end = std::max(h.end, slot + 1);
    if (block != kNoRow && block != slot / kArchiveBlock) summarise(h, block);
    block = slot / kArchiveBlock;
    positions[slot] = rows.position(i);
    scores_of(h)[slot] = rows.score(i);
    for (const bool value : {false, true}) {
      if (h.row_bytes(value) != 0)
        rows.read(i, value, rows_of(h, value) + uint64_t{slot} * h.row_bytes(value));
    }
    ++h.n_rows;
  }
  if (block != kNoRow) summarise(h, block);
}

void RowArchive::remove(uint32_t layer, uint32_t head, std::span<const uint32_t> slots) noexcept {
  Head& h = at(layer, head);
  for (const uint32_t slot : slots) positions_of(h)[slot] = kNoRow;
  h.n_rows -= static_cast<uint32_t>(slots.size());
}

void RowArchive::shift(uint32_t by, uint32_t least) noexcept {
  for (Head& h : heads_) {
    drop_below(&h, by + least);
    uint32_t* positions = positions_of(h);
    for (uint32_t slot = 0; slot < h.end; ++slot)
      positions[slot] -= positions[slot] == kNoRow ? 0 : by;
  }
}

void RowArchive::clear() noexcept {
  for (Head& h : heads_) h.n_rows = h.end = 0;
}

void RowArchive::copy_from(const RowArchive& from) noexcept {
  if (memory_.empty()) return;
  std::memcpy(memory_.data(), from.memory_.data(), memory_.size());
  std::copy(from.heads_.begin(), from.heads_.end(), heads_.begin());
  for (const Head& h : heads_) std::memset(changed_of(h), 1, capacity_ / kArchiveBlock);
}

}  // namespace sharpi
