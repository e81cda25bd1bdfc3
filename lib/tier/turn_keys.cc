// SPDX-License-Identifier: MIT
#include "tier/turn_keys.h"

#include <algorithm>
#include <cmath>

#include "kv/codec.h"
#include "kv/rotation.h"

namespace sharpi {
namespace {

// An angle is the sum of one of the low table, which has every position below this number, and one
// of the high table, which has its multiples.
constexpr uint32_t kLowPositions = 64;
constexpr uint32_t kPieceRows = 32;

}  // namespace

void KeyTurner::reserve(const ModelSpec& spec, uint32_t n_ctx) {
  n_ctx_ = n_ctx;
  tables_ = make_rope_tables(spec, &table_of_layer_);
  uint64_t elements = 0, half = 0;
  for (const LayerSpec& l : spec.layers) {
    if (!l.owns_kv() || l.attention.window != 0) continue;
    elements = std::max(elements, uint64_t{l.attention.n_kv_heads} * l.attention.head_dim);
    half = std::max<uint64_t>(half, l.attention.rope.n_rot / 2);
  }
  low_.resize(2 * half * kLowPositions);
  high_.resize(2 * half * (n_ctx / kLowPositions + 1));
  values_.resize(elements);
  piece_.resize(kPieceRows * elements * sizeof(float));
}

void KeyTurner::use_table(int32_t index) {
  if (index == table_) return;
  table_ = index;
  const std::vector<double>& freq = tables_[static_cast<size_t>(index)].inv_freq;
  const auto fill = [&](std::vector<float>* to, uint32_t n, uint32_t apart) {
    for (uint32_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < freq.size(); ++j) {
        const double angle = static_cast<double>(uint64_t{i} * apart) * freq[j];
        (*to)[2 * (i * freq.size() + j)] = static_cast<float>(std::cos(angle));
        (*to)[2 * (i * freq.size() + j) + 1] = static_cast<float>(std::sin(angle));
      }
    }
  };
  fill(&low_, kLowPositions, 1);
  fill(&high_, n_ctx_ / kLowPositions + 1, kLowPositions);
}

void KeyTurner::turn_row(float* row, const KvLayerLayout& one, uint32_t head,
                         uint32_t ahead) const {
  const RopeTable& table = tables_[static_cast<size_t>(table_)];
  const size_t half = table.inv_freq.size();
  const bool halves = table.spec.pairs == RopePairs::kHalves;
  const float* low = low_.data() + 2 * half * (ahead % kLowPositions);
  const float* high = high_.data() + 2 * half * (ahead / kLowPositions);
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

/// Rows [first, first + n), which piece_ holds as they are stored.
Status KeyTurner::turn_piece(const KvLayerLayout& one, const KvLedger& ledger, uint32_t shift,
                             uint32_t first, uint32_t n) {
  const uint64_t elements = uint64_t{one.n_heads} * one.head_dim;
  const uint32_t rotation = kv_rotation(one.k_dtype, one.head_dim);
  for (uint32_t i = 0; i < n; ++i) {
    std::byte* row = piece_.data() + uint64_t{i} * one.k_row_bytes;
    SHARPI_TRY(kv_decode_row(one.k_dtype, row, elements, 0, elements, values_.data()));
    kv_unrotate(values_.data(), elements, rotation);
    for (uint32_t h = 0; h < one.n_heads; ++h) {
      const uint32_t ahead = ledger.left_behind(one.layer, h, first + i, shift);
      if (ahead != 0) turn_row(values_.data(), one, h, ahead);
    }
    kv_rotate(values_.data(), elements, rotation);
    SHARPI_TRY(kv_encode_row(one.k_dtype, values_.data(), elements, row));
  }
  return Status::ok();
}

Status KeyTurner::turn(KvStore* store, uint32_t layer, const KvLedger& ledger, uint32_t shift) {
  const int32_t table = table_of_layer_[layer];
  if (table < 0 || tables_[static_cast<size_t>(table)].inv_freq.empty()) return Status::ok();
  use_table(table);
  const KvLayerLayout& one = *store->layout().find(layer);
  const LayerRows& rows = ledger.rows(layer);
  for (uint32_t first = 0; first < rows.n_compacted; first += kPieceRows) {
    const uint32_t n = std::min(kPieceRows, rows.n_compacted - first);
    // No row is further behind than the one before it: positions ascend by at least one a row.
    uint32_t most = 0;
    for (uint32_t h = 0; h < rows.n_lists; ++h)
      most = std::max(most, ledger.left_behind(layer, h, first, shift));
    if (most == 0) continue;
    SHARPI_TRY(store->read_rows(layer, false, first, n, piece_.data()));
    SHARPI_TRY(turn_piece(one, ledger, shift, first, n));
    SHARPI_TRY(store->write_rows(layer, false, first, n, piece_.data()));
  }
  return Status::ok();
}

}  // namespace sharpi
