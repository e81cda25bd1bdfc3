// SPDX-License-Identifier: MIT
#include "text/text_table.h"

#include <array>
#include <bit>

namespace sharpi {

void TextTable::build(const std::vector<std::string_view>& texts, uint64_t seed) {
  texts_ = &texts;
  seed_ = seed;
  const uint64_t capacity = std::bit_ceil(static_cast<uint64_t>(texts.size()) * 2 + 2);
  mask_ = capacity - 1;
  slots_.assign(capacity, Slot{0, 0});
  // The slot of a text is a cache miss; asking for it this far ahead hides most of them.
  constexpr uint32_t kAhead = 16;
  std::array<uint64_t, kAhead> hashes{};
  const auto n = static_cast<uint32_t>(texts.size());
  for (uint32_t i = 0; i < n + kAhead; ++i) {
    const uint64_t h = hashes[i % kAhead];
    if (i < n) {
      hashes[i % kAhead] = hash(texts[i]);
      prefetch_slot(hashes[i % kAhead]);
    }
    if (i >= kAhead) insert(i - kAhead, h);
  }
}

void TextTable::insert(uint32_t id, uint64_t h) {
  const std::vector<std::string_view>& texts = *texts_;
  const auto tag = static_cast<uint32_t>(h >> 32);
  uint64_t i = h & mask_;
  for (; slots_[i].id_plus_1 != 0; i = (i + 1) & mask_) {
    if (slots_[i].tag == tag && texts[slots_[i].id_plus_1 - 1] == texts[id]) return;
  }
  slots_[i] = {id + 1, tag};
}

uint32_t TextTable::find(std::string_view text, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (uint64_t i = hash & mask_; slots_[i].id_plus_1 != 0; i = (i + 1) & mask_) {
    const uint32_t id = slots_[i].id_plus_1 - 1;
    if (slots_[i].tag == tag && (*texts_)[id] == text) return id;
  }
  return kNone;
}

}  // namespace sharpi
