// SPDX-License-Identifier: MIT
#include "vulkan/pages.h"

#include <algorithm>

#include "vulkan/driver.h"

namespace sharpi::vulkan {

Status Pages::create() {
  SHARPI_TRY_ASSIGN(const Block block, driver_.allocate(kMostPages * sizeof(uint64_t),
                                                        MemoryKind::kTable, "the table of pages"));
  entries_ = reinterpret_cast<uint64_t*>(block.mapped);
  table_ = block.address;
  std::fill_n(entries_, kMostPages, uint64_t{0});
  return Status::ok();
}

uint64_t Pages::table() const {
  return table_;
}

/// The first gap that is wide enough.
Result<uint64_t> Pages::reserve(uint64_t bytes, const char* what) {
  const uint64_t n = bytes / kPageBytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t run = 0;
  for (uint64_t i = 0; i < kMostPages; ++i) {
    run = taken_[i] ? 0 : run + 1;
    if (run != n) continue;
    const uint64_t first = i + 1 - n;
    std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(first), n, true);
    return kRangeBit | first * kPageBytes;
  }
  return Status::error(Code::kOutOfMemory, "there is no address space for %s: %llu bytes", what,
                       static_cast<unsigned long long>(bytes));
}

void Pages::unreserve(uint64_t address, uint64_t bytes) noexcept {
  const uint64_t first = (address & ~kRangeBit) / kPageBytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::fill_n(taken_.begin() + static_cast<std::ptrdiff_t>(first), bytes / kPageBytes, false);
}

void Pages::map(uint64_t address, uint64_t bytes, const Block* block) noexcept {
  const uint64_t first = (address & ~kRangeBit) / kPageBytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (uint64_t i = 0; i < bytes / kPageBytes; ++i) {
    const uint64_t at = i * kPageBytes;
    pages_[first + i] = {};
    entries_[first + i] = 0;
    if (block == nullptr) continue;
    pages_[first + i] = {reinterpret_cast<uint64_t>(block->buffer), at};
    entries_[first + i] = block->address + at;
  }
}

bool Pages::place(uint64_t address, Place* out) const {
  const uint64_t page = (address & ~kRangeBit) / kPageBytes, byte = address % kPageBytes;
  if (page >= kMostPages) return false;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (pages_[page].buffer == 0) return false;
  out->buffer = reinterpret_cast<VkBuffer>(pages_[page].buffer);
  out->offset = pages_[page].offset + byte;
  out->left = kPageBytes - byte;
  return true;
}

}  // namespace sharpi::vulkan
