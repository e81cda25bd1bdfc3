// SPDX-License-Identifier: MIT
#include "engine/compact_tables.h"

namespace sharpi {

void CompactTables::reserve(const ModelSpec& spec, uint32_t capacity, uint32_t n_ctx) {
  CompactTables t;
  t.capacity_ = capacity;
  uint64_t lists = 0;
  for (const LayerSpec& l : spec.layers) {
    t.first_.push_back(lists * capacity);
    if (l.owns_kv() && l.attention.window == 0) lists += l.attention.n_kv_heads;
  }
  t.keep_.resize(lists * capacity);
  t.scores_.resize(lists * capacity);
  t.rows_.resize(3 * uint64_t{capacity});
  t.shared_.resize(n_ctx);
  t.order_.resize(capacity);
  *this = std::move(t);
}

uint64_t CompactTables::bytes() const {
  return (keep_.size() + order_.size()) * sizeof(uint32_t) +
         (scores_.size() + rows_.size() + shared_.size()) * sizeof(float);
}

}  // namespace sharpi
