// SPDX-License-Identifier: MIT
// Aligned pieces of a block of memory, one after the other: how scratch is laid out and how large
// it has to be are the same calls. Internal linkage, since kernel files with flags of their own
// include it. Thread rule: an object is one thread's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sharpi::cpu {
namespace {

/// Hands out aligned pieces of a block; with no block it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(uint64_t n) {
    std::byte* p = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (n * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<T*>(p);
  }
  uint64_t used() const { return used_; }

 private:
  static constexpr uint64_t kAlign = 64;
  std::byte* base_;
  uint64_t used_ = 0;
};

}  // namespace
}  // namespace sharpi::cpu
