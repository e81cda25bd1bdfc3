// SPDX-License-Identifier: MIT
// Stored K rows at other positions, which the field calls a context shift: RoPE rotates pairs of
// elements by an angle for each position, so a stored row is moved by some positions by rotating it
// by their angles. For sessions that go on past their context. Rows cross to the host and back, so
// that one piece of code serves every tier and codec. Thread rule: one owner (the session).
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_store.h"
#include "kv/ledger.h"
#include "model/model_spec.h"

namespace sharpi {

class KeyTurner {
 public:
  /// Takes the memory for rows of a model's full-attention layers, TurnSizes::of(spec, n_ctx)
  /// bytes; turn() takes none. The spec outlives this. Throws std::bad_alloc.
  void reserve(const ModelSpec& spec, uint32_t n_ctx);
  /// Bytes taken; 0 = none are.
  uint64_t bytes() const;
  /// Turns the rows of a layer whose positions KvLedger::rebase(shift) will move by less than the
  /// others. If a device fails on the way, some rows are turned and some are not.
  Status turn(KvStore* store, uint32_t layer, const KvLedger& ledger, uint32_t shift);

 private:
  void use(const RopeSpec& rope);
  void fill(uint64_t positions, float* turns) const;
  const float* far_turns(uint32_t index);
  void turn_row(float* row, const KvLayerLayout& one, uint32_t head, uint32_t ahead);
  Status turn_piece(const KvLayerLayout& one, const KvLedger& ledger, uint32_t shift,
                    uint32_t first, uint32_t n);

  const ModelSpec* spec_ = nullptr;
  const RopeSpec* rope_ = nullptr;  // that everything here is of; null = none yet
  size_t pairs_ = 0;                // of a head by that one
  std::vector<double> freq_;        // the angle of a pair per position
  // Cosine and sine of every pair: after 0 to 63 positions, and after some multiples of 64. A far
  // turn is at its multiple modulo their number, computed when it is asked for and another is
  // there.
  std::vector<float> near_, far_;
  std::vector<uint32_t> far_index_;  // the multiple that is there
  std::vector<std::byte> piece_;
  std::vector<float> values_;
};

}  // namespace sharpi
