// SPDX-License-Identifier: MIT
// Ids of token texts: an open-addressing hash table over views that the caller keeps.
// Thread rule: immutable after build(); any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/hash.h"

namespace sharpi {

class TextTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  /// Indexes `texts`, which must stay as they are. `seed` guards against files built to collide.
  void build(const std::vector<std::string_view>& texts, uint64_t seed);
  /// Index of `text`, or kNone; of equal texts the first.
  uint32_t find(std::string_view text) const { return find(text, hash(text)); }

  // The same in steps. A lookup is a chain of cache misses (slot, view, bytes); a caller with many
  // of them takes each step for a whole batch, so that the misses overlap.
  uint64_t hash(std::string_view text) const { return hash_text(text, seed_); }
  void prefetch_slot(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }
  void prefetch_view(uint64_t hash) const {
    if (const uint32_t id = slots_[hash & mask_].id_plus_1; id != 0) {
      __builtin_prefetch(&(*texts_)[id - 1]);
    }
  }
  void prefetch_bytes(uint64_t hash) const {
    if (const uint32_t id = slots_[hash & mask_].id_plus_1; id != 0) {
      __builtin_prefetch((*texts_)[id - 1].data());
    }
  }
  uint32_t find(std::string_view text, uint64_t hash) const;

 private:
  struct Slot {
    uint32_t id_plus_1;  // 0: empty
    uint32_t tag;        // hash bits, so that most misses need no look at the text
  };
  void insert(uint32_t id, uint64_t hash);
  const std::vector<std::string_view>* texts_ = nullptr;
  uint64_t seed_ = 0;
  uint64_t mask_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace sharpi
