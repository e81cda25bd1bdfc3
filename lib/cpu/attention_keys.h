// SPDX-License-Identifier: MIT
// Which keys a row of an attention task sees, and where they lie. Keys are slots in full attention,
// positions in windowed attention, and rows of the text itself where attention is not causal.
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/attention.h"

namespace sharpi::cpu {

inline uint64_t keys_end(const AttentionTask& t, uint32_t row) {
  if (t.causal) return (t.window == 0 ? t.n_past : t.pos0) + row + 1;
  return t.window == 0 ? t.n_rows : std::min<uint64_t>(t.n_rows, uint64_t{row} + t.window);
}
inline uint64_t keys_begin(const AttentionTask& t, uint32_t row) {
  const uint64_t own = t.causal ? keys_end(t, row) : uint64_t{row} + 1;
  const uint64_t begin = t.window == 0 || own <= t.window ? 0 : own - t.window;
  return std::max(begin, t.first);
}
/// Slots are those of `kv`, one after the other.
inline bool reads_one_view(const AttentionTask& t) {
  return t.window == 0 || !t.causal;
}
inline const KvView& source_of(const AttentionTask& t, uint64_t key, uint64_t* slot) {
  if (reads_one_view(t)) {
    *slot = key;
    return t.kv;
  }
  const bool in_chunk = key >= t.pos0;
  *slot = in_chunk ? key - t.pos0 : key % t.ring_slots;
  return in_chunk ? t.chunk : t.kv;
}

}  // namespace sharpi::cpu
