// SPDX-License-Identifier: MIT
#include "engine/blob_sum.h"

#include "base/cpu_relax.h"
#include "os/processors.h"

namespace sharpi {
namespace {

constexpr uint64_t kThreadFrom = 2u << 20;  // a thread takes as long to start as some 500 KB do
constexpr uint64_t kPieceFrom = 16u << 10;  // handing a piece over takes as long as some 10 KB do
// About what a piece of 256 KiB takes.
constexpr int kPauses = 1000;

/// Sleeps if `word` stays `value` for a while. It may also return for no reason.
void wait_while(std::atomic<uint32_t>& word, uint32_t value) {
  for (int i = 0; i < kPauses; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    cpu_relax();
  }
  os::wait_while(word, value);
}

}  // namespace

void BlobSum::begin(uint64_t bytes) {
  if (bytes < kThreadFrom || os::usable_cpus() < 2) return;
  const auto entry = [](void* self) { static_cast<BlobSum*>(self)->work(); };
  has_thread_ = thread_.start(entry, this, "sharpi-checksum") == 0;
}

BlobSum::~BlobSum() {
  if (!has_thread_) return;
  wait();
  hand_over(kEnd);
  thread_.join();
}

void BlobSum::add(const void* data, uint64_t bytes) {
  wait();
  sum_.add(data, bytes);
}

void BlobSum::start(const void* data, uint64_t bytes) {
  wait();
  if (!has_thread_ || bytes < kPieceFrom) {
    sum_.add(data, bytes);
    return;
  }
  data_ = data;
  bytes_ = bytes;
  hand_over(kGiven);
}

void BlobSum::hand_over(State state) {
  state_.store(state, std::memory_order_release);
  os::wake(state_, 1);
}

void BlobSum::wait() {
  uint32_t now = kGiven;
  if (state_.compare_exchange_strong(now, kNone, std::memory_order_acq_rel)) {
    sum_.add(data_, bytes_);
    return;
  }
  for (; now == kTaken; now = state_.load(std::memory_order_acquire)) wait_while(state_, kTaken);
}

void BlobSum::work() {
  for (uint32_t now = kNone; now != kEnd; now = state_.load(std::memory_order_acquire)) {
    if (now != kGiven) {
      wait_while(state_, now);
    } else if (state_.compare_exchange_strong(now, kTaken, std::memory_order_acq_rel)) {
      sum_.add(data_, bytes_);
      state_.store(kNone, std::memory_order_release);
      os::wake(state_, 1);
    }
  }
}

}  // namespace sharpi
