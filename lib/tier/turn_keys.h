// SPDX-License-Identifier: MIT
// Stored K rows at other positions: RoPE turns pairs of elements by the position, so a stored row
// is moved by a number of positions by turning it by as many more. For sessions that go on past
// their context. Rows cross to the host and back, so that one piece of code serves every tier and
// codec. Thread rule: one owner (the session).
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_store.h"
#include "kv/ledger.h"
#include "tier/rope_tables.h"

namespace sharpi {

class KeyTurner {
 public:
  /// Takes the memory for rows of a model's full-attention layers and turns of up to n_ctx
  /// positions; turn() takes none. Throws std::bad_alloc.
  void reserve(const ModelSpec& spec, uint32_t n_ctx);
  /// Turns the rows of a layer whose positions KvLedger::rebase(shift) will move by less than the
  /// others. If a device fails on the way, some rows are turned and some are not.
  Status turn(KvStore* store, uint32_t layer, const KvLedger& ledger, uint32_t shift);

 private:
  void use_table(int32_t index);
  void turn_row(float* row, const KvLayerLayout& one, uint32_t head, uint32_t ahead) const;
  Status turn_piece(const KvLayerLayout& one, const KvLedger& ledger, uint32_t shift,
                    uint32_t first, uint32_t n);

  uint32_t n_ctx_ = 0;
  std::vector<RopeTable> tables_;
  std::vector<int32_t> table_of_layer_;
  int32_t table_ = -1;  // the one that the angles are of
  // Cosine and sine of a pair after 0 to 63 positions, and after multiples of 64 positions.
  std::vector<float> low_, high_;
  std::vector<std::byte> piece_;
  std::vector<float> values_;
};

}  // namespace sharpi
