// SPDX-License-Identifier: MIT
#include "base/memory.h"

#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/out_of_memory.h"
#include "os/pages.h"

namespace sharpi {
namespace {

constexpr uint64_t kHugeFrom = uint64_t{4} << 20;
constexpr uint64_t kSmallAlignment = 64;

constexpr uint64_t alignment_of(uint64_t bytes) {
  return bytes >= kHugeFrom ? os::kHugePage : kSmallAlignment;
}

std::byte* take_block(const HostAllocator& host, uint64_t bytes) {
  if (host.allocate != nullptr) {
    return static_cast<std::byte*>(host.allocate(host.user, bytes, alignment_of(bytes)));
  }
  if (bytes >= kHugeFrom) {
    int error = 0;
    return os::map_pages(round_up(bytes, os::page_size()), os::Access::kReadWrite, &error);
  }
  const uint64_t rounded = round_up(bytes, kSmallAlignment);
  void* p = os::allocate_aligned(kSmallAlignment, rounded);
  if (p != nullptr) std::memset(p, 0, rounded);
  return static_cast<std::byte*>(p);
}

void free_block(const HostAllocator& host, std::byte* p, uint64_t bytes) {
  if (host.allocate != nullptr) {
    host.release(host.user, p, bytes);
  } else if (bytes >= kHugeFrom) {
    os::unmap_pages(p, round_up(bytes, os::page_size()));
  } else {
    os::free_aligned(p);
  }
}

}  // namespace

bool MemoryMeter::admit(uint64_t bytes) {
  const uint64_t request = requests_.fetch_add(1, std::memory_order_relaxed) + 1;
  if (request == fail_at_.load(std::memory_order_relaxed)) return false;
  const uint64_t now = live_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
  }
  return true;
}

Result<HostBuffer> HostBuffer::allocate(MemoryMeter& meter, uint64_t bytes, const char* what,
                                        Contents contents) {
  HostBuffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > kMaxBytes) return out_of_memory(what, bytes, ENOMEM, meter);
  // Memory first, admission second: a request that the system refuses must not raise the peak.
  const HostAllocator& host = meter.allocator();
  buffer.data_ = take_block(host, bytes);
  if (buffer.data_ == nullptr) return out_of_memory(what, bytes, ENOMEM, meter);
  if (reinterpret_cast<uintptr_t>(buffer.data_) % alignment_of(bytes) != 0) {
    free_block(host, std::exchange(buffer.data_, nullptr), bytes);
    return Status::error(
        Code::kInvalidArgument,
        "the host's allocator returned memory for %s that is not aligned to %" PRIu64 " bytes",
        what, alignment_of(bytes));
  }
  // Host memory is zeroed only now: what a broken allocator returned is not written.
  if (host.allocate != nullptr && contents == Contents::kZero) std::memset(buffer.data_, 0, bytes);
  if (!meter.admit(bytes)) {
    free_block(host, std::exchange(buffer.data_, nullptr), bytes);
    return out_of_memory(what, bytes, ENOMEM, meter);
  }
  buffer.bytes_ = bytes;
  buffer.meter_ = &meter;
  return buffer;
}

void HostBuffer::reset() {
  if (data_ == nullptr) return;
  free_block(meter_->allocator(), data_, bytes_);
  meter_->retire(bytes_);
  data_ = nullptr;
  bytes_ = 0;
  meter_ = nullptr;
}

}  // namespace sharpi
