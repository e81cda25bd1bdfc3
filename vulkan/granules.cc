// SPDX-License-Identifier: MIT
#include "vulkan/granules.h"

#include <utility>

namespace sharpi::vulkan {

class Granules::Pool final : public GranulePool {
 public:
  Pool(const Device& device, GranuleRun run, std::function<void(uint64_t)> on_free)
      : GranulePool(run, std::move(on_free)), device_(device), blocks_(run.count()) {}
  Block& block(uint64_t granule) { return blocks_[granule - first()]; }
  void give_back(GranuleRun run) noexcept override {
    for (uint64_t i = run.first; i < run.end; ++i) device_.give_block(block(i), false);
  }

 private:
  const Device& device_;
  std::vector<Block> blocks_;
};

Status Granules::grow(GranuleRun run) {
  for (uint64_t i = run.first; i < run.end; ++i) {
    auto block = device_.take_block(bytes_, MemoryKind::kDevice, what_);
    if (!block.is_ok()) {
      shrink({run.first, i});
      return block.status();
    }
    own_[i] = block.value();
    device_.driver().pages().map(at(i), bytes_, &own_[i]);
  }
  return Status::ok();
}

void Granules::shrink(GranuleRun run) noexcept {
  for (uint64_t i = run.end; i-- > run.first;) {
    device_.driver().pages().map(at(i), bytes_, nullptr);
    device_.give_block(own_[i], false);
  }
}

Result<std::shared_ptr<GranulePool>> Granules::pool(GranuleRun run,
                                                    const std::function<void(uint64_t)>& on_free) {
  return std::shared_ptr<GranulePool>(std::make_shared<Pool>(device_, run, on_free));
}

Status Granules::lend(GranulePool& pool, GranuleRun run) {
  for (uint64_t i = run.first; i < run.end; ++i) static_cast<Pool&>(pool).block(i) = own_[i];
  return Status::ok();
}

Status Granules::map(GranulePool& pool, GranuleRun run) {
  for (uint64_t i = run.first; i < run.end; ++i)
    device_.driver().pages().map(at(i), bytes_, &static_cast<Pool&>(pool).block(i));
  return Status::ok();
}

void Granules::unmap(GranuleRun run) noexcept {
  for (uint64_t i = run.first; i < run.end; ++i)
    device_.driver().pages().map(at(i), bytes_, nullptr);
}

/// The addresses have memory throughout.
Status Granules::replace(GranulePool& pool, GranuleRun run, uint64_t) {
  const uint64_t i = run.first;  // one at a time
  const Block& from = static_cast<Pool&>(pool).block(i);
  SHARPI_TRY_ASSIGN(const Block fresh, device_.take_block(bytes_, MemoryKind::kDevice, what_));
  const VkBufferCopy all{0, 0, bytes_};
  const Status copied = device_.driver().run_now(
      [&](VkCommandBuffer c) {
        device_.driver().f().vkCmdCopyBuffer(c, from.buffer, fresh.buffer, 1, &all);
      },
      what_);
  if (!copied.is_ok()) {
    device_.give_block(fresh, false);
    return copied;
  }
  own_[i] = fresh;
  device_.driver().pages().map(at(i), bytes_, &own_[i]);
  return Status::ok();
}

}  // namespace sharpi::vulkan
