// SPDX-License-Identifier: MIT
// From names in a mapping to their positions in a table: open addressing over hashes with a seed
// of its own per index, so that a file cannot be made to collide on purpose.
// Thread rule: immutable once filled; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace sharpi {

class NameIndex {
 public:
  /// Room for n names; call once, before add().
  void reserve(uint64_t n) {
    seed_ = reinterpret_cast<uintptr_t>(this) ^
            static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
    uint64_t n_slots = 16;
    while (n_slots < 2 * n) n_slots *= 2;
    slots_.assign(n_slots, {});
  }

  /// Adds a name, or returns the position of its earlier namesake and adds nothing.
  std::optional<uint32_t> add(std::string_view name, uint32_t position) {
    Slot& slot = slots_[slot_of(name)];
    if (slot.name.data() != nullptr) return slot.position;
    slot = {name, position};
    return std::nullopt;
  }

  std::optional<uint32_t> find(std::string_view name) const {
    if (slots_.empty()) return std::nullopt;
    const Slot& slot = slots_[slot_of(name)];
    if (slot.name.data() == nullptr) return std::nullopt;
    return slot.position;
  }

 private:
  struct Slot {
    std::string_view name;  // null data: free (names come from a mapping and are never null)
    uint32_t position = 0;
  };

  /// The slot that holds the name, or the free one where it belongs. At most half are taken.
  uint64_t slot_of(std::string_view name) const {
    const uint64_t mask = slots_.size() - 1;
    uint64_t at = hash64(name.data(), name.size(), seed_) & mask;
    while (slots_[at].name.data() != nullptr && slots_[at].name != name) at = (at + 1) & mask;
    return at;
  }

  uint64_t seed_ = 0;
  std::vector<Slot> slots_;
};

}  // namespace sharpi
