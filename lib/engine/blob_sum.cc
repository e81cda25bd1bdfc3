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

/// Returns once `word` is not `old` any more; its value then.
uint32_t wait_for_change(std::atomic<uint32_t>& word, uint32_t old) {
  for (int i = 0; i < kPauses; ++i) {
    if (word.load(std::memory_order_acquire) != old) break;
    cpu_relax();
  }
  uint32_t now = 0;
  while ((now = word.load(std::memory_order_acquire)) == old) os::wait_while(word, old);
  return now;
}

void set_and_wake(std::atomic<uint32_t>& word, uint32_t value) {
  word.store(value, std::memory_order_release);
  os::wake(word, 1);
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
  hand_over(nullptr, 0);
  thread_.join();
}

void BlobSum::add(const void* data, uint64_t bytes) {
  wait();
  sum_.add(data, bytes);
}

void BlobSum::start(const void* data, uint64_t bytes) {
  wait();
  if (has_thread_ && bytes >= kPieceFrom)
    hand_over(data, bytes);
  else
    sum_.add(data, bytes);
}

void BlobSum::hand_over(const void* data, uint64_t bytes) {
  data_ = data;
  bytes_ = bytes;
  set_and_wake(given_, given_.load(std::memory_order_relaxed) + 1);
}

void BlobSum::wait() {
  const uint32_t given = given_.load(std::memory_order_relaxed);
  if (done_.load(std::memory_order_acquire) != given) wait_for_change(done_, given - 1);
}

void BlobSum::work() {
  for (uint32_t seen = 0;;) {
    seen = wait_for_change(given_, seen);
    if (data_ == nullptr) return;
    sum_.add(data_, bytes_);
    set_and_wake(done_, seen);
  }
}

}  // namespace sharpi
