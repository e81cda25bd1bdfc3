// SPDX-License-Identifier: MIT
// A group: processes that have a model together, one behind the other. Every rank makes the same
// calls in the same order; what they say to each other at the beginning and the end of a call is an
// exchange, in which all hear all. After a failure of the transport the group is lost for good.
// Thread rule: a call holds GroupCall, of which there is one at a time; lost() from anywhere.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "group/transport.h"

namespace sharpi {

inline constexpr uint32_t kMaxRanks = 256;

struct GroupShape {
  uint32_t rank = 0, n_ranks = 2;
  uint32_t timeout_ms = 0;       // that a call waits for another rank
  uint32_t load_timeout_ms = 0;  // the same while groups are made and models are loaded
  uint32_t batch_parts = 0;      // of a batch, as rank 0 says; 0 = by what it reads
};

class Group {
 public:
  /// Every rank says hello. kMismatch: they do not agree about how many they are, or are of
  /// different builds; kDeviceLost: one did not come.
  static Result<std::shared_ptr<Group>> create(std::unique_ptr<Transport> transport,
                                               const GroupShape& shape);
  uint32_t rank() const { return shape_.rank; }
  uint32_t n_ranks() const { return shape_.n_ranks; }
  bool is_first() const { return shape_.rank == 0; }
  bool is_last() const { return shape_.rank + 1 == shape_.n_ranks; }
  const GroupShape& shape() const { return shape_; }
  const Transport& transport() const { return *transport_; }
  bool is_lost() const { return lost_.load(std::memory_order_acquire); }
  /// kDeviceLost, with what happened, if it is lost.
  Status usable() const;

  // Of a GroupCall:
  /// all[n_ranks][bytes]: what each gave. `patient`: others may be busy loading.
  Status exchange(const void* own, void* all, uint64_t bytes, bool patient = false);
  Status send_on(const void* data, uint64_t bytes);  // to the next rank
  Status receive_on(void* out, uint64_t bytes);      // from the one before
  uint32_t next_model() { return n_models_++; }

 private:
  friend class GroupCall;
  Group(std::unique_ptr<Transport> transport, const GroupShape& shape)
      : shape_(shape), transport_(std::move(transport)) {}
  Status greet();
  Status lose(const Status& why, uint32_t other);
  Deadline deadline(bool patient) const {
    return std::chrono::steady_clock::now() +
           std::chrono::milliseconds(patient ? shape_.load_timeout_ms : shape_.timeout_ms);
  }
  const GroupShape shape_;
  const std::unique_ptr<Transport> transport_;
  uint32_t n_models_ = 0;
  std::mutex call_;
  std::atomic<bool> lost_{false};
  std::string why_lost_;  // written once, before lost_
};

/// One call on a group, for a scope.
class GroupCall {
 public:
  explicit GroupCall(Group& group) : lock_(group.call_, std::try_to_lock) {}
  /// kBusy where another thread of this process is in a call on the group.
  Status entered() const;

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace sharpi
