// SPDX-License-Identifier: MIT
#include "engine/blob_sum.h"

#include <algorithm>

#include "base/cpu_relax.h"
#include "os/processors.h"

namespace sharpi {
namespace {

constexpr uint64_t kThreadsFrom = 2u << 20;  // a thread takes as long to start as some 500 KB do
constexpr uint64_t kPieceFrom = 16u << 10;   // handing a piece over takes as long as some 10 KB do
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
  if (bytes < kThreadsFrom || os::usable_cpus() < 2) return;
  begin_with(std::max(os::usable_cpus() / 4, 1u));
}

void BlobSum::begin_with(uint32_t n_threads) {
  const auto entry = [](void* self) { static_cast<Worker*>(self)->work(); };
  uint32_t n = 0;
  for (; n < std::min(n_threads, kMostThreads); ++n) {
    Worker& w = workers_[n];
    w.sum = this;
    w.index = n;
    if (w.thread.start(entry, &w, "sharpi-checksum") != 0) break;
  }
  n_workers_ = n;  // they look at it when they are given something
}

BlobSum::~BlobSum() {
  wait();
  for (uint32_t i = 0; i < n_workers_; ++i) workers_[i].hand_over(kEnd);
  for (uint32_t i = 0; i < n_workers_; ++i) workers_[i].thread.join();
}

void BlobSum::add(const void* data, uint64_t bytes) {
  wait();
  at_ += bytes_;
  bytes_ = bytes;
  sum_.add(at_, data, bytes);
}

void BlobSum::start(const void* data, uint64_t bytes) {
  if (n_workers_ == 0 || bytes < kPieceFrom) {
    add(data, bytes);
    return;
  }
  wait();
  at_ += bytes_;
  bytes_ = bytes;
  data_ = data;
  for (uint32_t i = 0; i < n_workers_; ++i) workers_[i].hand_over(kGiven);
}

void BlobSum::wait() {
  for (uint32_t i = 0; i < n_workers_; ++i) {
    uint32_t now = kGiven;
    if (!workers_[i].state.compare_exchange_strong(now, kNone, std::memory_order_acq_rel)) continue;
    add_lanes(i);
  }
  for (uint32_t i = 0; i < n_workers_; ++i) {
    std::atomic<uint32_t>& state = workers_[i].state;
    while (state.load(std::memory_order_acquire) == kTaken) wait_while(state, kTaken);
  }
}

void BlobSum::Worker::hand_over(State to) {
  state.store(to, std::memory_order_release);
  os::wake(state, 1);
}

void BlobSum::Worker::work() {
  for (uint32_t now = kNone; now != kEnd; now = state.load(std::memory_order_acquire)) {
    if (now != kGiven) {
      wait_while(state, now);
    } else if (state.compare_exchange_strong(now, kTaken, std::memory_order_acq_rel)) {
      sum->add_lanes(index);
      state.store(kNone, std::memory_order_release);
      os::wake(state, 1);
    }
  }
}

}  // namespace sharpi
