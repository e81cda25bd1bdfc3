// SPDX-License-Identifier: MIT
// The K-shift of a context shift: stored K rows are moved to other positions. RoPE rotates each
// pair of elements by an angle that is proportional to the position, so a stored key is moved by n
// positions by rotating it by n times those angles. Bounded sessions need it when they go on past
// their context. Rows are read to the host and written back, so that one piece of code serves every
// tier and codec. Thread rule: one owner (the session).
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_store.h"
#include "kv/ledger.h"
#include "model/model_spec.h"

namespace sharpi {

class KeyShifter {
 public:
  /// Takes the memory for rows of a model's full-attention layers, KeyShiftSizes::of(spec, n_ctx)
  /// bytes; shift_rows() takes none. The spec outlives this. Throws std::bad_alloc.
  void reserve(const ModelSpec& spec, uint32_t n_ctx);
  /// Bytes taken by reserve(); 0 before it.
  uint64_t bytes() const;
  /// Rotates the keys of a layer whose positions KvLedger::rebase(shift) will lower by less than
  /// `shift`, each by the difference. If a device fails, some rows are rotated and some are not.
  Status shift_rows(KvStore* store, uint32_t layer, const KvLedger& ledger, uint32_t shift);

 private:
  void use(const RopeSpec& rope);
  void fill(uint64_t positions, float* cos_sin) const;
  const float* far_cos_sin(uint32_t index);
  void apply_rope(float* row, const KvLayerLayout& one, uint32_t head, uint32_t positions);
  Status shift_piece(const KvLayerLayout& one, const KvLedger& ledger, uint32_t shift,
                     uint32_t first, uint32_t n);
  Status shift_head(KvStore* store, const KvLayerLayout& one, uint32_t head, const KvLedger& ledger,
                    uint32_t shift);

  const ModelSpec* spec_ = nullptr;
  const RopeSpec* rope_ = nullptr;  // whose angles the members below hold; null = none yet
  size_t pairs_ = 0;                // pairs of a head that RoPE rotates
  std::vector<double> freq_;        // [pairs_] angle of a pair per position
  // Cosine and sine of every pair, [..][pairs_][2]. near_: after 0 to 63 positions. far_: after
  // multiples of 64, a cache: multiple i is kept at entry i % entries, and is computed when it is
  // asked for while the entry holds another one.
  std::vector<float> near_, far_;
  std::vector<uint32_t> far_index_;  // which multiple each entry of far_ holds
  std::vector<std::byte> piece_;     // rows as they are stored
  std::vector<float> values_;        // one decoded row
};

}  // namespace sharpi
