// SPDX-License-Identifier: MIT
#include "cuda/queue.h"

namespace sharpi::cuda {
namespace {

cudaMemcpyKind kind_of(device::Way way) {
  switch (way) {
    case device::Way::kToDevice:
      return cudaMemcpyHostToDevice;
    case device::Way::kToHost:
      return cudaMemcpyDeviceToHost;
    case device::Way::kWithin:
      break;
  }
  return cudaMemcpyDeviceToDevice;
}

cudaEvent_t event_of(const device::Event& event) {
  return static_cast<const Event&>(event).get();
}

/// What a query answers: not ready is no error.
Result<bool> answer(const Device& device, cudaError_t error, const char* what) {
  if (error == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  SHARPI_TRY(device.check(error, what));
  return true;
}

}  // namespace

Result<std::unique_ptr<Stream>> Stream::create(const Device& device) {
  const DeviceScope scope(device);
  std::unique_ptr<Stream> s(new Stream(device));
  SHARPI_TRY(device.check(cudaStreamCreateWithFlags(&s->stream_, cudaStreamNonBlocking),
                          "cudaStreamCreate"));
  return s;
}

Stream::~Stream() {
  if (stream_ == nullptr) return;
  const DeviceScope scope(device_);
  cudaStreamDestroy(stream_);
}

Status Stream::copy(void* to, const void* from, uint64_t bytes, device::Way way,
                    const char* what) const {
  return device_.check(cudaMemcpyAsync(to, from, bytes, kind_of(way), stream_), what);
}

Status Stream::copy_rows(const device::RowRange& to, const device::ConstRowRange& from,
                         uint64_t bytes, uint64_t n, device::Way way, const char* what) const {
  return device_.check(cudaMemcpy2DAsync(to.data, to.stride, from.data, from.stride, bytes, n,
                                         kind_of(way), stream_),
                       what);
}

Status Stream::clear(void* to, uint64_t bytes, const char* what) const {
  return device_.check(cudaMemsetAsync(to, 0, bytes, stream_), what);
}

Status Stream::record(const device::Event& event, const char* what) const {
  return device_.check(cudaEventRecord(event_of(event), stream_), what);
}

Status Stream::wait_for(const device::Event& event, const char* what) const {
  return device_.check(cudaStreamWaitEvent(stream_, event_of(event), 0), what);
}

Status Stream::wait() const {
  const DeviceScope scope(device_);
  return device_.check(cudaStreamSynchronize(stream_), "waiting for work");
}

Result<bool> Stream::has_ended(const char* what) const {
  return answer(device_, cudaStreamQuery(stream_), what);
}

Status Stream::begin_recording() const {
  return device_.check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
                       "cudaStreamBeginCapture");
}

Result<std::unique_ptr<device::Recording>> Stream::end_recording(const Status& given) const {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  Status recorded = given;
  const cudaError_t ended = cudaStreamEndCapture(stream_, &graph);
  if (recorded.is_ok()) recorded = device_.check(ended, "cudaStreamEndCapture");
  if (recorded.is_ok()) {
    recorded = device_.check(cudaGraphInstantiate(&made, graph, 0), "cudaGraphInstantiate");
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!recorded.is_ok()) {
    cudaGetLastError();
    return recorded;
  }
  return std::unique_ptr<device::Recording>(std::make_unique<Graph>(made));
}

Status Stream::replay(const device::Recording& recording) const {
  return device_.check(cudaGraphLaunch(static_cast<const Graph&>(recording).get(), stream_),
                       "cudaGraphLaunch");
}

Result<std::unique_ptr<Event>> Event::create(const Device& device, unsigned flags) {
  const DeviceScope scope(device);
  std::unique_ptr<Event> e(new Event(device));
  SHARPI_TRY(device.check(cudaEventCreateWithFlags(&e->event_, flags), "cudaEventCreate"));
  return e;
}

Event::~Event() {
  if (event_ == nullptr) return;
  const DeviceScope scope(device_);
  cudaEventDestroy(event_);
}

Status Event::wait(const char* what) const {
  return device_.check(cudaEventSynchronize(event_), what);
}

Result<bool> Event::has_happened(const char* what) const {
  return answer(device_, cudaEventQuery(event_), what);
}

Graph::~Graph() {
  if (cudaGraphExecDestroy(graph_) != cudaSuccess) cudaGetLastError();
}

}  // namespace sharpi::cuda
