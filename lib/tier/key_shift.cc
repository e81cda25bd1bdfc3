// SPDX-License-Identifier: MIT
#include "tier/key_shift.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kv/codec.h"
#include "kv/rotation.h"
#include "plan/context_shift.h"
#include "tier/rope_tables.h"

namespace sharpi {
namespace {

constexpr uint32_t kNear = KeyShiftSizes::kNear, kPieceRows = KeyShiftSizes::kPieceRows;
constexpr uint32_t kNothing = UINT32_MAX;  // no multiple has this index

}  // namespace

void KeyShifter::reserve(const ModelSpec& spec, uint32_t n_ctx) {
  const KeyShiftSizes sizes = KeyShiftSizes::of(spec, n_ctx);
  spec_ = &spec;
  rope_ = nullptr;
  freq_.resize(sizes.pairs);
  near_.resize(2 * sizes.pairs * kNear);
  far_.resize(2 * sizes.pairs * sizes.n_far);
  far_index_.resize(sizes.n_far);
  values_.resize(sizes.elements);
  piece_.resize(kPieceRows * sizes.elements * sizeof(float));
}

uint64_t KeyShifter::bytes() const {
  return freq_.size() * sizeof(double) + far_index_.size() * sizeof(uint32_t) + piece_.size() +
         (near_.size() + far_.size() + values_.size()) * sizeof(float);
}

void KeyShifter::use(const RopeSpec& rope) {
  const bool same = rope_ != nullptr && same_rope(*rope_, rope);
  rope_ = &rope;
  if (same) return;
  pairs_ = rope.n_rot / 2;
  fill_inv_freq(rope, std::span(freq_).first(pairs_));
  for (uint32_t i = 0; i < kNear; ++i) fill(i, &near_[2 * pairs_ * i]);
  std::fill(far_index_.begin(), far_index_.end(), kNothing);
}

void KeyShifter::fill(uint64_t positions, float* cos_sin) const {
  for (size_t j = 0; j < pairs_; ++j) {
    const double angle = static_cast<double>(positions) * freq_[j];
    cos_sin[2 * j] = static_cast<float>(std::cos(angle));
    cos_sin[2 * j + 1] = static_cast<float>(std::sin(angle));
  }
}

/// Cosines and sines after index * kNear positions.
const float* KeyShifter::far_cos_sin(uint32_t index) {
  const uint32_t at = index % static_cast<uint32_t>(far_index_.size());
  float* cos_sin = &far_[2 * pairs_ * at];
  if (far_index_[at] != index) {
    fill(uint64_t{index} * kNear, cos_sin);
    far_index_[at] = index;
  }
  return cos_sin;
}

void KeyShifter::apply_rope(float* row, const KvLayerLayout& one, uint32_t head,
                            uint32_t positions) {
  const size_t half = pairs_;
  const bool halves = rope_->pairs == RopePairs::kHalves;
  const float* low = &near_[2 * half * (positions % kNear)];
  const float* high = far_cos_sin(positions / kNear);
  float* x = row + uint64_t{head} * one.head_dim;
  for (size_t j = 0; j < half; ++j) {
    const float c = high[2 * j] * low[2 * j] - high[2 * j + 1] * low[2 * j + 1];
    const float s = high[2 * j + 1] * low[2 * j] + high[2 * j] * low[2 * j + 1];
    float *first = x + (halves ? j : 2 * j), *second = x + (halves ? j + half : 2 * j + 1);
    const float a = *first, b = *second;
    *first = a * c - b * s;
    *second = a * s + b * c;
  }
}

/// Rows [first, first + n) of a layer, which piece_ holds in their codec.
Status KeyShifter::shift_piece(const KvLayerLayout& one, const KvLedger& ledger, uint32_t shift,
                               uint32_t first, uint32_t n) {
  const uint64_t elements = uint64_t{one.n_heads} * one.head_dim;
  const uint32_t rotation = kv_rotation(one.k_dtype, one.head_dim);
  for (uint32_t i = 0; i < n; ++i) {
    std::byte* row = piece_.data() + uint64_t{i} * one.k_row_bytes;
    SHARPI_TRY(kv_decode_row(one.k_dtype, row, elements, 0, elements, values_.data()));
    kv_unrotate(values_.data(), elements, rotation);
    for (uint32_t h = 0; h < one.n_heads; ++h) {
      const uint32_t behind = ledger.positions_behind(one.layer, h, first + i, shift);
      if (behind != 0) apply_rope(values_.data(), one, h, behind);
    }
    kv_rotate(values_.data(), elements, rotation);
    SHARPI_TRY(kv_encode_row(one.k_dtype, values_.data(), elements, row));
  }
  return Status::ok();
}

/// The rows of one head, of a layer whose rows are in blocks of one head.
Status KeyShifter::shift_head(KvStore* store, const KvLayerLayout& one, uint32_t head,
                              const KvLedger& ledger, uint32_t shift) {
  const uint32_t rotation = kv_rotation(one.k_dtype, one.head_dim), dim = one.head_dim;
  const uint64_t row_bytes = one.k_row_bytes / one.n_heads;
  const uint32_t placed = ledger.rows(one.layer).n_compacted - ledger.lag(one.layer, head);
  for (uint32_t first = 0; first < placed; first += kPieceRows) {
    const uint32_t n = std::min(kPieceRows, placed - first);
    if (ledger.positions_behind(one.layer, head, first, shift) == 0) break;  // nor those behind it
    SHARPI_TRY(store->read_head_rows(one.layer, head, false, first, n, piece_.data()));
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t behind = ledger.positions_behind(one.layer, head, first + i, shift);
      std::byte* row = piece_.data() + i * row_bytes;
      SHARPI_TRY(kv_decode_row(one.k_dtype, row, dim, 0, dim, values_.data()));
      kv_unrotate(values_.data(), dim, rotation);
      if (behind != 0) apply_rope(values_.data(), one, 0, behind);
      kv_rotate(values_.data(), dim, rotation);
      SHARPI_TRY(kv_encode_row(one.k_dtype, values_.data(), dim, row));
    }
    SHARPI_TRY(store->write_head_rows(one.layer, head, false, first, n, piece_.data()));
  }
  return Status::ok();
}

Status KeyShifter::shift_rows(KvStore* store, uint32_t layer, const KvLedger& ledger,
                              uint32_t shift) {
  const LayerSpec& l = spec_->layers[layer];
  if (l.attends() == nullptr || l.attention.rope.n_rot < 2) return Status::ok();
  use(l.attention.rope);
  const KvLayerLayout& one = *store->layout().find(layer);
  if (store->is_by_head(static_cast<uint32_t>(store->layout().group_of_layer[layer]))) {
    for (uint32_t h = 0; h < one.n_heads; ++h) SHARPI_TRY(shift_head(store, one, h, ledger, shift));
    return Status::ok();
  }
  const LayerRows& rows = ledger.rows(layer);
  for (uint32_t first = 0; first < rows.n_compacted; first += kPieceRows) {
    const uint32_t n = std::min(kPieceRows, rows.n_compacted - first);
    // Positions ascend by at least one from row to row, so no row is further behind than the first.
    uint32_t most = 0;
    for (uint32_t h = 0; h < rows.n_lists; ++h)
      most = std::max(most, ledger.positions_behind(layer, h, first, shift));
    if (most == 0) continue;
    SHARPI_TRY(store->read_rows(layer, false, first, n, piece_.data()));
    SHARPI_TRY(shift_piece(one, ledger, shift, first, n));
    SHARPI_TRY(store->write_rows(layer, false, first, n, piece_.data()));
  }
  return Status::ok();
}

}  // namespace sharpi
