// SPDX-License-Identifier: MIT
#include "kv/row_archive.h"

#include <algorithm>

#include "base/checked.h"
#include "base/half.h"
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

/// Bytes of a head's rows, and of the bounds of its blocks; capacities are whole blocks, so both
/// are multiples of 16.
uint64_t all_row_bytes(uint64_t capacity, uint64_t row_bytes) {
  return capacity * (2 * sizeof(uint32_t) + row_bytes);
}
uint64_t all_bound_bytes(uint64_t capacity, uint64_t dim) {
  return capacity / kArchiveBlock * 2 * dim * sizeof(uint16_t);
}

uint32_t whole_blocks(uint32_t n_rows) {
  return static_cast<uint32_t>(round_up(n_rows, kArchiveBlock));
}

}  // namespace

/// In memory: positions, scores, K rows, V rows and, where it is not lent, bounds.
RowArchive::Head RowArchive::head_of(const LayerSpec& layer, const KvDtypePair& dtypes,
                                     uint32_t capacity, bool lent) {
  const AttentionSpec& a = layer.attention;
  Head h;
  h.dim = a.head_dim;
  h.k_dtype = dtypes.k;
  h.k_bytes = static_cast<uint32_t>(kv_row_bytes(dtypes.k, a.head_dim));
  h.v_bytes = a.one_row() ? 0 : static_cast<uint32_t>(kv_row_bytes(dtypes.v, a.head_dim));
  h.lent = lent;
  h.bytes = all_row_bytes(capacity, h.k_bytes + h.v_bytes) +
            (lent ? 0 : all_bound_bytes(capacity, h.dim));
  return h;
}

uint64_t RowArchive::lent_bytes(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                                uint32_t layer, uint32_t n_rows) {
  const LayerSpec& l = spec.layers[layer];
  if (n_rows == 0 || !has_rows(l)) return 0;
  return l.attention.n_kv_heads * head_of(l, dtypes[layer], whole_blocks(n_rows), true).bytes;
}

uint64_t RowArchive::bytes_for(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                               uint32_t n_rows, uint32_t n_slots,
                               const std::function<bool(uint32_t layer)>& is_lent) {
  if (n_rows == 0 || most_heads(spec) == 0) return 0;
  uint64_t bytes = widest_key(spec) * sizeof(float) +
                   2 * uint64_t{n_slots} * most_heads(spec) * sizeof(uint32_t);
  for (uint32_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& l = spec.layers[i];
    if (!has_rows(l) || is_lent(i)) continue;
    bytes += l.attention.n_kv_heads * head_of(l, dtypes[i], whole_blocks(n_rows), false).bytes;
  }
  return bytes;
}

void RowArchive::reserve(const ModelSpec& spec, const std::vector<KvDtypePair>& dtypes,
                         uint32_t n_rows, uint32_t n_slots, const Lender& lender) {
  RowArchive r;
  uint64_t end = 0;
  r.capacity_ = whole_blocks(n_rows);
  r.first_.resize(spec.n_layers());
  r.n_heads_.resize(spec.n_layers());
  for (uint32_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& l = spec.layers[i];
    r.first_[i] = static_cast<uint32_t>(r.heads_.size());
    if (!has_rows(l)) continue;
    r.n_heads_[i] = l.attention.n_kv_heads;
    std::byte* lent = lender ? lender(i) : nullptr;
    Head h = head_of(l, dtypes[i], r.capacity_, lent != nullptr);
    for (uint32_t k = 0; k < r.n_heads_[i]; ++k) {
      h.base = lent == nullptr ? nullptr : lent + k * h.bytes;
      r.heads_.push_back(h);
      end += h.lent ? 0 : h.bytes;
    }
  }
  r.memory_.resize(end);
  std::byte* next = r.memory_.data();
  for (Head& h : r.heads_) {
    if (h.lent) continue;
    h.base = next;
    next += h.bytes;
  }
  r.key_.resize(r.heads_.empty() ? 0 : widest_key(spec));
  r.n_slots_ = n_slots;
  r.slots_.resize(2 * uint64_t{n_slots} * most_heads(spec));
  *this = std::move(r);
}

uint32_t* RowArchive::positions_of(const Head& h) const {
  return reinterpret_cast<uint32_t*>(h.base);
}
float* RowArchive::scores_of(const Head& h) const {
  return reinterpret_cast<float*>(positions_of(h) + capacity_);
}
std::byte* RowArchive::rows_of(const Head& h, bool value) const {
  std::byte* k = reinterpret_cast<std::byte*>(scores_of(h) + capacity_);
  return value ? k + uint64_t{capacity_} * h.k_bytes : k;
}
uint16_t* RowArchive::bounds_of(const Head& h) const {
  return reinterpret_cast<uint16_t*>(h.base + all_row_bytes(capacity_, h.k_bytes + h.v_bytes));
}

std::span<const uint32_t> RowArchive::positions(uint32_t layer, uint32_t head) const {
  const Head& h = at(layer, head);
  return {positions_of(h), h.end};
}

const std::byte* RowArchive::row(uint32_t layer, uint32_t head, bool value, uint32_t slot) const {
  const Head& h = at(layer, head);
  return rows_of(h, value) + uint64_t{slot} * h.row_bytes(value);
}

std::span<const uint16_t> RowArchive::bounds(uint32_t layer, uint32_t head, uint32_t block) const {
  const Head& h = at(layer, head);
  return {bounds_of(h) + uint64_t{block} * 2 * h.dim, size_t{2} * h.dim};
}

bool RowArchive::is_empty(const Head& h, uint32_t block) const {
  const uint32_t* first = positions_of(h) + block * kArchiveBlock;
  const uint32_t* end = positions_of(h) + std::min((block + 1) * kArchiveBlock, h.end);
  return std::all_of(first, std::max(first, end), [](uint32_t p) { return p == kNoRow; });
}

/// The key of a row that has come lies within the bounds of its block.
void RowArchive::widen(const Head& h, uint32_t slot, bool begins) noexcept {
  float* key = key_.data();
  const std::byte* row = rows_of(h, false) + uint64_t{slot} * h.k_bytes;
  const Status decoded = kv_decode_row(h.k_dtype, row, h.dim, 0, h.dim, key);
  if (!decoded.is_ok()) return;  // the plan has checked the codec
  const uint32_t rotation = kv_rotation(h.k_dtype, h.dim);
  if (rotation != 0) kv_unrotate(key, h.dim, rotation);
  uint16_t *low = bounds_of(h) + uint64_t{slot / kArchiveBlock} * 2 * h.dim, *high = low + h.dim;
  for (uint32_t e = 0; e < h.dim; ++e) {
    if (begins || key[e] < f32_from_bf16(low[e])) low[e] = bf16_beyond(key[e], false);
    if (begins || key[e] > f32_from_bf16(high[e])) high[e] = bf16_beyond(key[e], true);
  }
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
uint32_t RowArchive::make_room(Head* h, uint32_t n, const Positions& rows) noexcept {
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

/// put(slot, with kBegins or without, i) for each row that has room; how many have none.
template <class Put>
uint32_t RowArchive::place_each(Head* h, uint32_t n, const Positions& rows,
                                const Put& put) noexcept {
  uint32_t* positions = positions_of(*h);
  const uint32_t skipped = make_room(h, n, rows);
  for (uint32_t i = skipped, slot = 0; i < n; ++i, ++slot) {
    while (slot < h->end && positions[slot] != kNoRow) ++slot;
    const bool begins = is_empty(*h, slot / kArchiveBlock);
    h->end = std::max(h->end, slot + 1);
    positions[slot] = rows.position(i);
    ++h->n_rows;
    put(slot | (begins ? kBegins : 0), i);
  }
  return skipped;
}

void RowArchive::put(const Head& h, uint32_t place, uint32_t i, const Source& rows) noexcept {
  const uint32_t slot = place & ~kBegins;
  scores_of(h)[slot] = rows.score(i);
  for (const bool value : {false, true}) {
    if (h.row_bytes(value) != 0)
      rows.read(i, value, rows_of(h, value) + uint64_t{slot} * h.row_bytes(value));
  }
  widen(h, slot, (place & kBegins) != 0);
}

void RowArchive::insert(uint32_t layer, uint32_t head, uint32_t n, const Source& rows) noexcept {
  Head& h = at(layer, head);
  place_each(&h, n, rows, [&](uint32_t place, uint32_t i) { put(h, place, i, rows); });
}

uint32_t RowArchive::place(uint32_t layer, uint32_t head, uint32_t n, const Positions& rows,
                           uint32_t* places) noexcept {
  return place_each(&at(layer, head), n, rows,
                    [&](uint32_t place, uint32_t i) { places[i] = place; });
}

template <class Put>
void RowArchive::replace_each(Head* h, std::span<const uint32_t> slots, const Positions& rows,
                              const Put& put) noexcept {
  uint32_t* positions = positions_of(*h);
  for (const uint32_t slot : slots) positions[slot] = kNoRow;
  uint32_t last = kNoRow;  // the block of the slot before, which has a row
  for (uint32_t i = 0; i < slots.size(); ++i) {
    const uint32_t slot = slots[i], block = slot / kArchiveBlock;
    const bool begins = block != last && is_empty(*h, block);
    last = block;
    positions[slot] = rows.position(i);
    put(slot | (begins ? kBegins : 0), i);
  }
}

void RowArchive::replace(uint32_t layer, uint32_t head, std::span<const uint32_t> slots,
                         const Source& rows) noexcept {
  Head& h = at(layer, head);
  replace_each(&h, slots, rows, [&](uint32_t place, uint32_t i) { put(h, place, i, rows); });
}

void RowArchive::replace(uint32_t layer, uint32_t head, std::span<const uint32_t> slots,
                         const Positions& rows, uint32_t* places) noexcept {
  replace_each(&at(layer, head), slots, rows,
               [&](uint32_t place, uint32_t i) { places[i] = place; });
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

/// As far as there are rows.
void RowArchive::copy_from(const RowArchive& from) noexcept {
  for (size_t i = 0; i < heads_.size(); ++i) {
    Head& h = heads_[i];
    const Head& f = from.heads_[i];
    std::byte* base = h.base;
    h = f;
    h.base = base;
    std::copy_n(positions_of(f), f.end, positions_of(h));
    std::copy_n(scores_of(f), f.end, scores_of(h));
    for (const bool value : {false, true})
      std::copy_n(rows_of(f, value), uint64_t{f.end} * f.row_bytes(value), rows_of(h, value));
    if (!f.lent) std::copy_n(bounds_of(f), div_up(f.end, kArchiveBlock) * 2 * f.dim, bounds_of(h));
  }
}

}  // namespace sharpi
