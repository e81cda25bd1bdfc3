// SPDX-License-Identifier: MIT
// What saving and restoring a session share: the ledger's fields, and the sizes of the parts of a
// blob's body. Thread rule: plain functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/blob_sum.h"
#include "engine/session_blob.h"
#include "kv/codec.h"
#include "kv/kv_store.h"
#include "kv/ledger.h"
#include "model/model_spec.h"

namespace sharpi {

/// The ledger's fields, for saving and restoring only.
class LedgerCodec {
 public:
  static void header(const KvLedger& l, BlobHeader* h) {
    h->base = l.base_;
    h->n_tokens = l.n_tokens_;
    h->flags = (l.compacted_ ? kBlobCompacted : 0) | (l.by_head_ ? kBlobByHead : 0);
    h->version = l.by_head_ ? kBlobVersionByHead : kBlobVersion;
    h->ring_low = l.ring_low_;
    h->evicted_floor = l.evicted_floor_;
    h->n_queries = l.n_tokens_ - l.capture_low_;
  }
  /// Pre: `l` is empty, and everything fits it.
  static void set_header(const BlobHeader& h, KvLedger* l) noexcept {
    l->base_ = h.base;
    l->n_tokens_ = h.n_tokens;
    l->compacted_ = (h.flags & kBlobCompacted) != 0;
    l->by_head_ = (h.flags & kBlobByHead) != 0;
    l->evicted_floor_ = h.evicted_floor;
    l->scored_tokens_ = h.n_scored;
    // Rows of later positions that a truncation left in the saved rings did not come along.
    l->ring_high_ = h.n_tokens;
    // A smaller ring keeps only its own last rows.
    const uint32_t gone =
        l->ring_slots_ != 0 && h.n_tokens > l->ring_slots_ ? h.n_tokens - l->ring_slots_ : 0;
    l->ring_low_ = std::max(h.ring_low, gone);
    l->capture_low_ = h.n_tokens - std::min(h.n_queries, l->capture_window_);
  }
  /// `lags`: of every head, or empty; `positions`: the lists, one after the other. Pre: memory for
  /// them is reserved.
  static void set_rows(KvLedger* l, uint32_t layer, const LayerRows& rows,
                       std::span<const uint32_t> lags,
                       std::span<const uint32_t> positions) noexcept {
    l->rows_[layer] = rows;
    std::copy(lags.begin(), lags.end(),
              l->lags_.begin() + static_cast<long>(l->first_list_[layer]));
    size_t at = 0;
    for (uint32_t i = 0; i < rows.n_lists; ++i) {
      const auto list = positions.subspan(at, rows.n_compacted - l->lag(layer, i));
      std::copy(list.begin(), list.end(), l->list(layer, i));
      at += list.size();
    }
  }
  /// Window of the narrowest rings; 0 = there are none.
  static uint32_t window(const KvLedger& l) { return l.window_; }
};

/// Bytes that are read or written at a time, unless one part that cannot be divided is larger.
inline constexpr uint64_t kBlobPiece = kRowPiece;

/// Elements of one captured query of a layer; 0 if it captures none.
inline uint64_t query_dim(const LayerSpec& l) {
  const AttentionSpec* a = l.attends_to_all();
  return a != nullptr ? uint64_t{a->n_heads} * a->head_dim : 0;
}

/// One side's rows of a layer: how they are stored, and how large a piece of them is.
struct RowSide {
  bool value = false;
  KvDtype dtype = KvDtype::kF32;
  uint64_t row_bytes = 0, elements = 0;
  RowSide(const KvLayerLayout& l, bool is_value)
      : value(is_value),
        dtype(is_value ? l.v_dtype : l.k_dtype),
        row_bytes(is_value ? l.v_row_bytes : l.k_row_bytes),
        elements(uint64_t{l.n_heads} * l.head_dim) {}
  /// Of rows of one head.
  static RowSide of_head(const KvLayerLayout& l, bool is_value) {
    RowSide s(l, is_value);
    s.row_bytes /= l.n_heads;
    s.elements = l.head_dim;
    return s;
  }
  /// Saved rows are other bytes than those that are stored.
  bool changes_form() const {
    const KvCodec* codec = kv_codec(dtype);
    return codec == nullptr || codec->has_canonical_form();
  }
  uint32_t piece_rows(uint64_t bytes) const {
    return static_cast<uint32_t>(std::max<uint64_t>(1, bytes / row_bytes));
  }
};

/// How large the parts of layers are that cannot be divided, and whether rows of one change form.
struct BlobNeeds {
  uint64_t piece = 0, row = 0;
  bool changes_form = false;

  void add(const LayerSpec& spec, const KvStore& kv, uint32_t l) {
    piece = std::max(piece, query_dim(spec) * sizeof(float));
    for (const StatePart part : {StatePart::kState, StatePart::kConv})
      piece = std::max(piece, kv.state_bytes(l, part));
    const KvLayerLayout* one = kv.layout().find(l);
    if (one == nullptr) return;
    for (const bool value : one->sides()) {
      const RowSide side(*one, value);
      row = std::max(row, side.row_bytes);
      changes_form = changes_form || side.changes_form();
    }
  }
};

/// Memory for one piece or for two of rows, and for a piece of rows in its other form.
class BlobScratch {
 public:
  /// Throws std::bad_alloc.
  void reserve(const BlobNeeds& n) {
    half_ = std::max(n.row, kBlobPiece);
    piece_.resize(std::max(n.piece, 2 * half_));
    other_.resize(n.changes_form ? half_ : 0);
  }
  std::byte* piece() { return piece_.data(); }
  std::byte* rows(bool second) { return piece_.data() + (second ? half_ : 0); }
  std::byte* other_form() { return other_.data(); }
  float* floats() { return reinterpret_cast<float*>(piece_.data()); }

 private:
  uint64_t half_ = 0;
  std::vector<std::byte> piece_, other_;
};

/// Where pieces of a side's rows are on their way: two places by turns, so that one piece is copied
/// or summed while the host deals with the other. They are the halves of the store's room, or,
/// where there is no room, of the scratch, where rows are copied at once. What sums them, if
/// anything, is done when it goes.
class RowPieces {
 public:
  RowPieces(const KvStore& kv, const RowSide& side, BlobScratch* scratch, BlobSum* sum)
      : kv_(kv),
        value_(side.value),
        room_(kv.copy_room()),
        half_(room_.bytes().size() / 2),
        scratch_(scratch),
        sum_(sum),
        ahead_(half_ >= side.row_bytes),
        n_rows_(side.piece_rows(ahead_ ? std::min(half_, kBlobPiece) : kBlobPiece)) {}
  ~RowPieces() {
    if (sum_ != nullptr) sum_->wait();
  }
  RowPieces(const RowPieces&) = delete;
  RowPieces& operator=(const RowPieces&) = delete;
  /// Copies are under way until wait().
  bool runs_ahead() const { return ahead_; }
  uint32_t n_rows() const { return n_rows_; }
  /// The place of the piece before the last one.
  std::byte* next() {
    second_ = !second_;
    return ahead_ ? room_.bytes().data() + (second_ ? half_ : 0) : scratch_->rows(second_);
  }
  /// Rows from `first` on to or from a piece: under way until wait() where pieces run ahead.
  Status read(uint32_t layer, uint32_t first, uint32_t n, std::byte* to) const {
    return ahead_ ? kv_.start_reading(layer, value_, first, n, to)
                  : kv_.read_rows(layer, value_, first, n, to);
  }
  /// `kv`: the store that this was made of.
  Status write(KvStore* kv, uint32_t layer, uint32_t first, uint32_t n,
               const std::byte* from) const {
    return ahead_ ? kv->start_writing(layer, value_, first, n, from)
                  : kv->write_rows(layer, value_, first, n, from);
  }
  Status wait() const { return ahead_ ? kv_.finish_copies() : Status::ok(); }

 private:
  const KvStore& kv_;
  bool value_;
  CopyRoom room_;
  uint64_t half_;
  BlobScratch* scratch_;
  BlobSum* sum_;
  bool ahead_, second_ = false;
  uint32_t n_rows_;
};

}  // namespace sharpi
