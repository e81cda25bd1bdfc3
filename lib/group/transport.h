// SPDX-License-Identifier: MIT
// How bytes go from one process of a group to another: what a host brings (functions, an NCCL
// communicator) stands behind this interface.
// Thread rule: one call at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace sharpi {

using Deadline = std::chrono::steady_clock::time_point;

class Transport {
 public:
  virtual ~Transport() = default;
  /// Returns when rank `to` has taken the bytes by receive(), so that nobody runs ahead. An error,
  /// at the latest at the deadline, is for good: the group gives the transport up.
  virtual Status send(uint32_t to, const void* data, uint64_t bytes, Deadline deadline) = 0;
  virtual Status receive(uint32_t from, void* out, uint64_t bytes, Deadline deadline) = 0;
  /// After a failure: nothing follows. Ranks that wait for this one should hear it.
  virtual void abandon() noexcept = 0;
  /// "NCCL 2.28.3".
  virtual std::string name() const = 0;
  /// What it holds of its device's memory.
  virtual uint64_t device_bytes() const { return 0; }
};

}  // namespace sharpi
