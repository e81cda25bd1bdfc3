// SPDX-License-Identifier: MIT
// Ranges of addresses of which a prefix has memory, on devices whose drivers cannot map memory
// behind addresses (sparse binding is missing on many): an address of a range is a name, and a
// table that kernels read says where its page lies (kv_address() in shaders/memory.glsl).
//   address = kRangeBit | page * kPageBytes | byte
// Thread rule: all functions may be called from any thread; a page has one owner.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.h"

namespace sharpi::vulkan {

class Driver;
struct Block;
struct Place;

inline constexpr uint32_t kPageShift = 21;  // shaders/memory.glsl has the same
inline constexpr uint64_t kPageBytes = uint64_t{1} << kPageShift;
inline constexpr uint64_t kRangeBit = uint64_t{1} << 62;
/// Pages of all ranges of a device: 256 GiB of addresses.
inline constexpr uint32_t kMostPages = 1u << 17;

class Pages {
 public:
  explicit Pages(const Driver& driver) : driver_(driver), pages_(kMostPages) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  Status create();
  uint64_t table() const;  // its address, for kernels

  /// The first address of a range of whole pages.
  Result<uint64_t> reserve(uint64_t bytes, const char* what);
  void unreserve(uint64_t address, uint64_t bytes) noexcept;
  /// `block`, whole pages, is where `address` is from now on; nullptr: nothing is there.
  void map(uint64_t address, uint64_t bytes, const Block* block) noexcept;
  bool place(uint64_t address, Place* out) const;

 private:
  struct Page {
    uint64_t buffer = 0;  // VkBuffer
    uint64_t offset = 0;
  };
  const Driver& driver_;
  mutable std::mutex mutex_;
  std::vector<Page> pages_;
  std::vector<bool> taken_ = std::vector<bool>(kMostPages, false);
  uint64_t* entries_ = nullptr;  // of the table, as the host writes them
  uint64_t table_ = 0;
};

}  // namespace sharpi::vulkan
