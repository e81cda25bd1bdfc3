// SPDX-License-Identifier: MIT
// The checksum of a blob that is written or read. It takes as long as moving the bytes does, so of
// a long blob a thread of its own makes it, behind whoever moves them. A piece that the thread has
// not begun when somebody has to wait for it is summed by who waits: processors that have other
// work to do cost nothing then.
// Thread rule: one owner (a call); it waits for its thread when it goes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "os/threads.h"

namespace sharpi {

class BlobSum {
 public:
  BlobSum() = default;
  ~BlobSum();
  BlobSum(const BlobSum&) = delete;
  BlobSum& operator=(const BlobSum&) = delete;

  /// So many bytes will come: worth a thread or not. Without one, which the system may refuse,
  /// start() does the work itself. May throw std::bad_alloc.
  void begin(uint64_t bytes);
  /// Done on return.
  void add(const void* data, uint64_t bytes);
  /// Under way on return, and what was started before is done. `data` stays as it is until then.
  void start(const void* data, uint64_t bytes);
  /// All that was started is done.
  void wait();
  uint64_t value() {
    wait();
    return sum_.value();
  }

 private:
  enum State : uint32_t { kNone, kGiven, kTaken, kEnd };
  void hand_over(State state);
  void work();

  Hash64 sum_;  // the thread's while state_ is kTaken, else the owner's
  os::Thread thread_;
  bool has_thread_ = false;
  const void* data_ = nullptr;  // the piece that is given or taken
  uint64_t bytes_ = 0;
  std::atomic<uint32_t> state_{kNone};
};

}  // namespace sharpi
