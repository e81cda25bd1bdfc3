// SPDX-License-Identifier: MIT
// Streams and events of the CUDA tier with an owner. Thread rule: one owner.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "base/status.h"
#include "cuda/device.h"

namespace sharpi::cuda {

/// A stream that does not wait for the host program's default stream.
class Stream {
 public:
  Stream() = default;
  static Result<Stream> create(const Device& device) {
    const DeviceScope scope(device);
    Stream s;
    SHARPI_TRY(device.check(cudaStreamCreateWithFlags(&s.stream_, cudaStreamNonBlocking),
                            "cudaStreamCreate"));
    s.device_ = &device;
    return s;
  }
  ~Stream() {
    if (stream_ == nullptr) return;
    const DeviceScope scope(*device_);
    cudaStreamDestroy(stream_);
  }
  Stream(Stream&& o) noexcept { swap(o); }
  Stream& operator=(Stream&& o) noexcept {
    swap(o);
    return *this;
  }
  cudaStream_t get() const { return stream_; }
  Status wait() const {
    const DeviceScope scope(*device_);
    return device_->check(cudaStreamSynchronize(stream_), "waiting for work");
  }

 private:
  void swap(Stream& o) noexcept {
    std::swap(stream_, o.stream_);
    std::swap(device_, o.device_);
  }
  cudaStream_t stream_ = nullptr;
  const Device* device_ = nullptr;
};

class Event {
 public:
  Event() = default;
  static Result<Event> create(const Device& device, unsigned flags = cudaEventDefault) {
    const DeviceScope scope(device);
    Event e;
    SHARPI_TRY(device.check(cudaEventCreateWithFlags(&e.event_, flags), "cudaEventCreate"));
    e.device_ = &device;
    return e;
  }
  ~Event() {
    if (event_ == nullptr) return;
    const DeviceScope scope(*device_);
    cudaEventDestroy(event_);
  }
  Event(Event&& o) noexcept { swap(o); }
  Event& operator=(Event&& o) noexcept {
    swap(o);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

 private:
  void swap(Event& o) noexcept {
    std::swap(event_, o.event_);
    std::swap(device_, o.device_);
  }
  cudaEvent_t event_ = nullptr;
  const Device* device_ = nullptr;
};

}  // namespace sharpi::cuda
