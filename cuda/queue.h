// SPDX-License-Identifier: MIT
// Queues, events and recordings of the CUDA tier: streams, events and graphs with an owner.
// Thread rule: as device/device.h.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "base/status.h"
#include "cuda/device.h"
#include "device/device.h"

namespace sharpi::cuda {

/// A stream that does not wait for the host program's default stream. Copies and marks are made in
/// the caller's DeviceScope, waits make one themselves.
class Stream final : public device::Queue {
 public:
  static Result<std::unique_ptr<Stream>> create(const Device& device);
  ~Stream() override;
  cudaStream_t get() const { return stream_; }

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
  explicit Stream(const Device& device) : device_(device) {}
  const Device& device_;
  cudaStream_t stream_ = nullptr;
};

/// The stream of a queue of this tier.
inline cudaStream_t stream_of(const device::Queue& queue) {
  return static_cast<const Stream&>(queue).get();
}

class Event final : public device::Event {
 public:
  /// `flags`: of cudaEventCreateWithFlags().
  static Result<std::unique_ptr<Event>> create(const Device& device, unsigned flags);
  ~Event() override;
  cudaEvent_t get() const { return event_; }
  Status wait(const char* what) const override;
  Result<bool> has_happened(const char* what) const override;

 private:
  explicit Event(const Device& device) : device_(device) {}
  const Device& device_;
  cudaEvent_t event_ = nullptr;
};

/// A graph. Whoever destroys it is in the device's scope.
class Graph final : public device::Recording {
 public:
  explicit Graph(cudaGraphExec_t graph) : graph_(graph) {}
  ~Graph() override;
  cudaGraphExec_t get() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

}  // namespace sharpi::cuda
