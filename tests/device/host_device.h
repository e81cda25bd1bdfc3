// SPDX-License-Identifier: MIT
// A device without a GPU: its memory is blocks of the host's that only its queues touch, and a
// queue does nothing before somebody waits for it. So a wait, an upload or a dependency between
// queues that is missing shows as numbers that are wrong. Kernels are functions of the host.
// Thread rule: as device/device.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "device/device.h"
#include "device/kernels.h"

namespace sharpi::testing {

using Work = std::function<Status()>;

/// What was given to a queue and is not done yet.
struct QueueState {
  std::recursive_mutex mutex;
  std::deque<Work> waiting;
  uint64_t given = 0, done = 0;
  Status fault;  // the first; nothing behind it is done
  bool run_next();
  Status run_until(uint64_t mark);
};

class HostEvent final : public device::Event {
 public:
  Status wait(const char* what) const override;
  /// A device comes to a mark some time after it was made: the first question hears no.
  Result<bool> has_happened(const char* what) const override;
  std::shared_ptr<QueueState> queue;  // of the last mark; null: there is none
  uint64_t mark = 0;
  mutable bool asked = false;
};

class HostRecording final : public device::Recording {
 public:
  std::vector<Work> work;
  bool meets_host = false;  // waits for the host in its midst: it is done by a thread
};

/// What a device did and holds.
struct HostCounts {
  std::atomic<uint64_t> device_bytes{0}, pinned_bytes{0};  // of blocks that were taken
  std::atomic<uint64_t> n_replays{0};                      // of recordings
  std::atomic<uint64_t> n_direct{0};  // copies of hidden rows to another device
};

class HostQueue final : public device::Queue {
 public:
  HostQueue(std::shared_ptr<HostCounts> counts, uint32_t device)
      : counts_(std::move(counts)), device_(device) {}
  ~HostQueue() override;
  void give(Work work) const;
  /// What is recorded waits for the host in its midst.
  void meets_host() const;
  Status copy(void* to, const void* from, uint64_t bytes, device::Way way,
              const char* what) const override;
  Status copy_rows(const device::RowRange& to, const device::ConstRowRange& from, uint64_t bytes,
                   uint64_t n, device::Way way, const char* what) const override;
  Status clear(void* to, uint64_t bytes, const char* what) const override;
  Status record(const device::Event& event, const char* what) const override;
  Status wait_for(const device::Event& event, const char* what) const override;
  Status wait() const override;
  Result<bool> has_ended(const char* what) const override;
  Status begin_recording() const override;
  Result<std::unique_ptr<device::Recording>> end_recording(const Status& given) const override;
  Status replay(const device::Recording& recording) const override;

 private:
  void join() const;
  std::shared_ptr<HostCounts> counts_;
  uint32_t device_;
  std::shared_ptr<QueueState> state_ = std::make_shared<QueueState>();
  mutable std::unique_ptr<HostRecording> recording_;
  mutable std::thread runner_;
};

/// Faults that a test puts into a device.
struct HostFaults {
  std::atomic<bool> drops_waits{false};    // of queues for events
  std::atomic<bool> drops_uploads{false};  // of call tables
  std::atomic<bool> keeps_layout{false};   // weights lie as in the file
  std::atomic<uint32_t> eager{0};          // this device does everything as soon as it is given
  /// Copies that are given to the queues of a device, counted down; that at 1 is refused.
  std::atomic<uint32_t> fails_on{0};
  std::atomic<int> fails_in{0};
  std::atomic<bool> fails_late{false};  // it is taken, and fails when it is its turn
  std::atomic<bool> throws{false};      // std::bad_alloc instead
  std::atomic<bool> refuses_adapters{false};
};

class HostDevice final : public device::Device {
 public:
  /// Any GPU's but CUDA's: nothing in the room may take one tier for all.
  explicit HostDevice(uint32_t index = 1, TierId tier = TierId::kVulkan);
  TierId tier() const override { return tier_; }
  uint32_t index() const override { return index_; }
  Status open() override { return usable(); }
  Status usable() const override;
  /// No device reaches another before this says so.
  void reach(uint32_t index) { reached_.push_back(index); }
  bool reaches(uint32_t index) const override {
    return std::find(reached_.begin(), reached_.end(), index) != reached_.end();
  }
  Status settle(Status status) const override { return status; }
  void mark_lost(int native) const override { lost_ = native == 0 ? -1 : native; }
  std::mutex& launch_mutex() const override { return launch_mutex_; }
  uint64_t held_bytes(uint64_t n) const override { return (n + 511) / 512 * 512; }
  uint64_t pinned_held_bytes(uint64_t n) const override { return (n + 511) / 512 * 512; }
  uint64_t granule_bytes(uint64_t) const override { return 65536; }
  /// Less than what most models of tests weigh: their weights lie in several blocks.
  uint64_t largest_block() const override { return kLargestBlock; }
  static constexpr uint64_t kLargestBlock = 3u << 20;
  Result<std::byte*> take(uint64_t bytes, const char* what) const override;
  void give(std::byte* data, uint64_t bytes) const noexcept override;
  Result<std::byte*> take_pinned(uint64_t bytes, const char* what) const override;
  void give_pinned(std::byte* data, uint64_t bytes) const noexcept override;
  Result<device::Addresses> reserve(uint64_t bytes, uint64_t granule,
                                    const char* what) const override;
  void unreserve(const device::Addresses& addresses, uint64_t bytes) const noexcept override;
  Result<std::unique_ptr<device::Queue>> create_queue() const override;
  Result<std::unique_ptr<device::Event>> create_event() const override;
  const device::DeviceKernels& kernels() const override { return *kernels_; }
  std::unique_ptr<device::PassKernels> pass_kernels(const ModelShape& model) const override;
  void enter(Scope*) const override {}
  void leave(Scope*) const noexcept override {}
  const HostCounts& counts() const { return *counts_; }
  /// Bytes of granules that ranges of addresses have now.
  uint64_t granule_bytes_held() const { return meter_.live_bytes(); }

 private:
  static std::byte* allocate(uint64_t held);
  uint32_t index_;
  TierId tier_;
  std::shared_ptr<HostCounts> counts_ = std::make_shared<HostCounts>();
  mutable std::mutex launch_mutex_;
  mutable std::atomic<int> lost_{0};
  std::vector<uint32_t> reached_;
  mutable MemoryMeter meter_;
  std::unique_ptr<device::DeviceKernels> kernels_;
};

/// Those of every device of the tests.
HostFaults& host_faults();
std::unique_ptr<device::DeviceKernels> make_host_kernels();
std::unique_ptr<device::PassKernels> make_host_pass_kernels(const ModelShape& model);

inline const HostQueue& host_queue(const device::Queue& queue) {
  return static_cast<const HostQueue&>(queue);
}

}  // namespace sharpi::testing
