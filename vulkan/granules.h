// SPDX-License-Identifier: MIT
// Memory of a range of addresses, granule by granule (base/granules.h): each granule is a block of
// its own, and the table of pages says where it lies. Thread rule: as GranuleMemory.
#pragma once

#include <vector>

#include "base/granules.h"
#include "vulkan/vulkan_device.h"

namespace sharpi::vulkan {

class Granules final : public GranuleMemory {
 public:
  /// `most`: granules of `bytes` of the range. Throws std::bad_alloc.
  Granules(const Device& device, uint64_t address, uint64_t bytes, uint64_t most, const char* what)
      : device_(device), address_(address), bytes_(bytes), what_(what), own_(most) {}

  uint64_t step() const override { return 1; }
  Status grow(GranuleRun run) override;
  void shrink(GranuleRun run) noexcept override;
  Result<std::shared_ptr<GranulePool>> pool(GranuleRun run,
                                            const std::function<void(uint64_t)>& on_free) override;
  Status lend(GranulePool& pool, GranuleRun run) override;
  Status map(GranulePool& pool, GranuleRun run) override;
  void unmap(GranuleRun run) noexcept override;
  Status replace(GranulePool& pool, GranuleRun run, uint64_t live) override;
  Status protect(GranuleRun, bool) override { return Status::ok(); }

 private:
  class Pool;
  uint64_t at(uint64_t granule) const { return address_ + granule * bytes_; }
  const Device& device_;
  const uint64_t address_, bytes_;
  const char* const what_;
  std::vector<Block> own_;  // granules that are this range's alone
};

}  // namespace sharpi::vulkan
