// SPDX-License-Identifier: MIT
// The checksum of a blob that is written or read. It takes longer than moving the bytes does, so of
// a long blob threads of its own make it, each some lanes of it, behind whoever moves the bytes.
// What a thread has not begun when somebody has to wait for it is summed by who waits: processors
// that have other work to do cost nothing then.
// Thread rule: one owner (a call); it waits for its threads when it goes.
#pragma once

#include <array>
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

  static constexpr uint32_t kMostThreads = StripedHash64::kLanes;
  /// So many bytes will come: worth threads or not, as many as suit the machine. Without them,
  /// which the system may refuse, start() does the work itself. May throw std::bad_alloc.
  void begin(uint64_t bytes);
  /// With at most so many threads.
  void begin_with(uint32_t n_threads);
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
  /// A thread, and whose its lanes of the piece are: the thread's while `state` is kTaken, else the
  /// owner's.
  struct Worker {
    BlobSum* sum = nullptr;
    uint32_t index = 0;
    os::Thread thread;
    std::atomic<uint32_t> state{kNone};
    void hand_over(State to);
    void work();
  };
  /// Of the piece, the lanes of a worker.
  void add_lanes(uint32_t worker) { sum_.add(at_, data_, bytes_, worker, n_workers_); }

  StripedHash64 sum_;
  std::array<Worker, kMostThreads> workers_;
  uint32_t n_workers_ = 0;
  const void* data_ = nullptr;  // the piece that was started last
  uint64_t at_ = 0, bytes_ = 0;
};

}  // namespace sharpi
