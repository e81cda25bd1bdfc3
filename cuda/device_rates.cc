// SPDX-License-Identifier: MIT
// How fast a device reads its memory, and how fast bytes reach it from the host.
#include <functional>

#include "cuda/device.h"
#include "cuda/kernels/elementwise.h"
#include "cuda/queue.h"
#include "device/memory.h"

namespace sharpi::cuda {
namespace {

using device::DeviceBuffer;
using device::PinnedBuffer;

/// Bytes/s of the best of a few runs of `work` over `bytes`; the first one warms up.
Result<double> best_rate(const Device& device, const Stream& stream, uint64_t bytes,
                         const std::function<Status()>& work) {
  constexpr int kRounds = 4;
  SHARPI_TRY_ASSIGN(const auto start, Event::create(device, cudaEventDefault));
  SHARPI_TRY_ASSIGN(const auto stop, Event::create(device, cudaEventDefault));
  float best = 0.0f;
  for (int i = 0; i <= kRounds; ++i) {
    SHARPI_TRY(device.check(cudaEventRecord(start->get(), stream.get()), "cudaEventRecord"));
    SHARPI_TRY(work());
    SHARPI_TRY(device.check(cudaEventRecord(stop->get(), stream.get()), "cudaEventRecord"));
    SHARPI_TRY(stream.wait());
    float ms = 0.0f;
    SHARPI_TRY(device.check(cudaEventElapsedTime(&ms, start->get(), stop->get()), "event time"));
    if (i > 0 && (best == 0.0f || ms < best)) best = ms;
  }
  return static_cast<double>(bytes) / (static_cast<double>(best) * 1e-3);
}

}  // namespace

Result<double> measure_device_bandwidth(Device& device) {
  constexpr uint64_t kBytes = 1ull << 30;  // far larger than any L2
  SHARPI_TRY(device.open());
  const DeviceScope scope(device);
  uint64_t bytes = kBytes;
  while (bytes > (64ull << 20) && bytes + (256ull << 20) > device.free_bytes()) bytes /= 2;
  SHARPI_TRY_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(device, bytes, "the measurement"));
  SHARPI_TRY_ASSIGN(DeviceBuffer sink, DeviceBuffer::allocate(device, 4096, "the measurement"));
  SHARPI_TRY_ASSIGN(const auto stream, Stream::create(device));
  SHARPI_TRY(device.check(cudaMemsetAsync(buffer.data(), 1, bytes, stream->get()), "memset"));
  return best_rate(device, *stream, bytes, [&] {
    return device.settle(launch_read_stream(buffer.data(), bytes, sink.as<uint32_t>(),
                                            device.profile().n_sm, stream->get()));
  });
}

Result<double> measure_link_bandwidth(Device& device) {
  constexpr uint64_t kBytes = 32ull << 20;  // as large as a piece of streamed weights
  SHARPI_TRY(device.open());
  const DeviceScope scope(device);
  SHARPI_TRY_ASSIGN(PinnedBuffer from, PinnedBuffer::allocate(device, kBytes, "the measurement"));
  SHARPI_TRY_ASSIGN(DeviceBuffer to, DeviceBuffer::allocate(device, kBytes, "the measurement"));
  SHARPI_TRY_ASSIGN(const auto stream, Stream::create(device));
  return best_rate(device, *stream, kBytes, [&] {
    return device.check(
        cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyHostToDevice, stream->get()),
        "cudaMemcpyAsync");
  });
}

}  // namespace sharpi::cuda
