// SPDX-License-Identifier: MIT
// What work items over the thread pool share: scratch of one thread for each item that runs, and
// the merging of partial softmaxes. Thread rule: any thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

namespace sharpi::cpu {

/// Hands each work item one of n pieces of scratch: items that run at once never share one.
class ScratchSlots {
 public:
  /// n: at least as many as items run at once.
  explicit ScratchSlots(uint32_t n) : n_(n) {}
  uint32_t take() {
    for (uint32_t i = next_.fetch_add(1, std::memory_order_relaxed) % n_;; i = (i + 1) % n_) {
      if (!used_[i].exchange(true, std::memory_order_acquire)) return i;
    }
  }
  void give(uint32_t i) { used_[i].store(false, std::memory_order_release); }

 private:
  static constexpr uint32_t kMost = 1024;  // threads a context can have
  const uint32_t n_;
  std::atomic<uint32_t> next_{0};
  std::atomic<bool> used_[kMost] = {};
};

/// Adds exponentials whose sum is `part`, relative to the score `high`, to *sum, relative to *most.
inline void merge_softmax(float part, float high, float* sum, float* most) {
  const float now = std::max(*most, high);
  *sum = *sum * std::exp(*most - now) + part * std::exp(high - now);
  *most = now;
}

}  // namespace sharpi::cpu
