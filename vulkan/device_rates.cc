// SPDX-License-Identifier: MIT
// How fast a device reads its memory, and how fast bytes reach it from the host.
#include <algorithm>
#include <chrono>
#include <functional>

#include "device/memory.h"
#include "vulkan/queue.h"
#include "vulkan/vulkan_device.h"

namespace sharpi::vulkan {
namespace {

using device::DeviceBuffer;
using device::PinnedBuffer;

constexpr uint64_t kPieceBytes = 64 << 10;  // of shaders/read_stream.comp

/// Bytes/s of the best of a few runs of `work` over `bytes`; the first one warms up. By the host's
/// clock: a submission's own time is in it, some 20 us.
Result<double> best_rate(const device::Queue& queue, uint64_t bytes,
                         const std::function<Status()>& work) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 3;
  double best = 0;
  for (int i = 0; i <= kRounds; ++i) {
    const Clock::time_point start = Clock::now();
    SHARPI_TRY(work());
    SHARPI_TRY(queue.wait());
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (i > 0 && (best == 0 || seconds < best)) best = seconds;
  }
  return static_cast<double>(bytes) / best;
}

}  // namespace

Result<double> measure_device_bandwidth(Device& device) {
  const bool software = device.physical().kind == DeviceKind::kSoftware;
  // Far larger than any cache of a GPU; contexts of software devices would wait for seconds.
  uint64_t bytes = software ? 4 << 20 : 1 << 30;
  bytes = std::min(bytes, device.largest_block());
  SHARPI_TRY(device.open());
  while (bytes > (4 << 20) && bytes > device.free_now() / 2) bytes /= 2;
  bytes = bytes / kPieceBytes * kPieceBytes;
  SHARPI_TRY_ASSIGN(DeviceBuffer buffer, DeviceBuffer::allocate(device, bytes, "the measurement"));
  SHARPI_TRY_ASSIGN(DeviceBuffer sink, DeviceBuffer::allocate(device, 4096, "the measurement"));
  SHARPI_TRY_ASSIGN(const auto queue, device.create_queue());
  const uint32_t n_passes = software ? 1 : 4;
  const uint64_t pieces = bytes / kPieceBytes;
  return best_rate(*queue, n_passes * bytes, [&] {
    for (uint32_t i = 0; i < n_passes; ++i) {
      const Args args = Args().at(buffer.data()).at(sink.data()).u(pieces);
      Kernel k{Shader::read_stream, {}, args, pieces};
      k.beside = i != 0;
      SHARPI_TRY(static_cast<const Queue&>(*queue).dispatch(k));
    }
    return Status::ok();
  });
}

Result<double> measure_link_bandwidth(Device& device) {
  const bool software = device.physical().kind == DeviceKind::kSoftware;
  const uint64_t bytes = software ? 4 << 20 : 32 << 20;  // as large as a piece of streamed weights
  const uint32_t n_copies = software ? 1 : 4;
  SHARPI_TRY(device.open());
  SHARPI_TRY_ASSIGN(PinnedBuffer from, PinnedBuffer::allocate(device, bytes, "the measurement"));
  SHARPI_TRY_ASSIGN(DeviceBuffer to, DeviceBuffer::allocate(device, bytes, "the measurement"));
  SHARPI_TRY_ASSIGN(const auto queue, device.create_queue());
  return best_rate(*queue, n_copies * bytes, [&] {
    for (uint32_t i = 0; i < n_copies; ++i)
      SHARPI_TRY(
          queue->copy(to.data(), from.data(), bytes, device::Way::kToDevice, "the measurement"));
    return Status::ok();
  });
}

}  // namespace sharpi::vulkan
