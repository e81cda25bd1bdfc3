// SPDX-License-Identifier: MIT
#include "tier/compact_tables.h"

namespace sharpi {

void CompactTables::reserve(const ModelSpec& spec, uint32_t capacity, uint32_t n_ctx, bool replay) {
  CompactTables t;
  t.capacity_ = capacity;
  uint64_t lists = 0;
  for (const LayerSpec& l : spec.layers) {
    const bool kept = l.owns_kv() && l.attention.window == 0;
    t.first_.push_back(lists * capacity);
    t.n_heads_.push_back(kept ? l.attention.n_kv_heads : 0);
    lists += t.n_heads_.back();
  }
  t.own_replay_.resize(spec.layers.size());
  t.keep_.resize(lists * capacity);
  t.counts_.resize(lists);
  t.terms_.resize(lists * capacity);
  if (replay) t.replay_.resize(n_ctx);
  t.rows_.resize(2 * uint64_t{capacity});
  t.shared_.resize(n_ctx);
  t.order_.resize(capacity);
  *this = std::move(t);
}

uint64_t CompactTables::bytes() const {
  return (keep_.size() + order_.size() + counts_.size()) * sizeof(uint32_t) +
         (terms_.size() + replay_.size() + rows_.size() + shared_.size()) * sizeof(float);
}

}  // namespace sharpi
