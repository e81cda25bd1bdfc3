// SPDX-License-Identifier: MIT
// Memory that clients' requests may take together: their bodies, and what is made of them.
// Thread rule: any thread; a share belongs to one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace server {

class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t most) : most_(most) {}
  uint64_t taken() const { return taken_; }

  /// What one request has of it; given back when it ends.
  class Share {
   public:
    Share() = default;
    explicit Share(MemoryBudget& budget) : budget_(&budget) {}
    ~Share() { release(); }
    Share(Share&& other) noexcept
        : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
    Share& operator=(Share&& other) noexcept {
      release();
      budget_ = other.budget_;
      bytes_ = std::exchange(other.bytes_, 0);
      return *this;
    }
    /// Has so many bytes in all from here on. False: there are not so many, and it has what it had.
    bool grow_to(uint64_t bytes) {
      if (bytes <= bytes_) return true;
      if (budget_ == nullptr || !budget_->take(bytes - bytes_)) return false;
      bytes_ = bytes;
      return true;
    }
    void release() {
      if (bytes_ != 0) budget_->taken_ -= bytes_;
      bytes_ = 0;
    }
    uint64_t bytes() const { return bytes_; }

   private:
    MemoryBudget* budget_ = nullptr;
    uint64_t bytes_ = 0;
  };

 private:
  bool take(uint64_t bytes) {
    uint64_t taken = taken_;
    do {
      if (bytes > most_ - taken) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + bytes));
    return true;
  }

  const uint64_t most_;
  std::atomic<uint64_t> taken_{0};
};

}  // namespace server
