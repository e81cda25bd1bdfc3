// SPDX-License-Identifier: MIT
#include "base/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/checked.h"
#include "base/poison.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older C library headers lack the name
#endif

namespace sharpi {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kHugeFrom = uint64_t{4} << 20;
constexpr uint64_t kSmallAlignment = 64;
constexpr uint64_t kPage = 4096;
constexpr uint64_t kMaxBytes = uint64_t{1} << 62;  // keeps every rounding below overflow-free

constexpr uint64_t alignment_of(uint64_t bytes) {
  return bytes >= kHugeFrom ? kHugePage : kSmallAlignment;
}

/// Maps `bytes` (a page multiple) of anonymous memory at a multiple of 2 MiB; nullptr and errno.
std::byte* map_huge_aligned(uint64_t bytes, int protection, int extra_flags) {
  const uint64_t mapped = bytes + kHugePage;
  void* raw = mmap(nullptr, mapped, protection, MAP_PRIVATE | MAP_ANONYMOUS | extra_flags, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(raw);
  const uint64_t head = round_up(address, kHugePage) - address;
  auto* base = static_cast<std::byte*>(raw);
  if (head != 0) munmap(base, head);
  munmap(base + head + bytes, kHugePage - head);
  // Advice only: a kernel without transparent huge pages refuses it and nothing is lost.
  madvise(base + head, bytes, MADV_HUGEPAGE);
  return base + head;
}

std::byte* take_block(const HostAllocator& host, uint64_t bytes) {
  if (host.allocate != nullptr) {
    return static_cast<std::byte*>(host.allocate(host.user, bytes, alignment_of(bytes)));
  }
  if (bytes >= kHugeFrom) {
    return map_huge_aligned(round_up(bytes, kPage), PROT_READ | PROT_WRITE, 0);
  }
  const uint64_t rounded = round_up(bytes, kSmallAlignment);
  void* p = std::aligned_alloc(kSmallAlignment, rounded);
  if (p != nullptr) std::memset(p, 0, rounded);
  return static_cast<std::byte*>(p);
}

void free_block(const HostAllocator& host, std::byte* p, uint64_t bytes) {
  if (host.allocate != nullptr) {
    host.release(host.user, p, bytes);
  } else if (bytes >= kHugeFrom) {
    munmap(p, round_up(bytes, kPage));
  } else {
    std::free(p);
  }
}

/// Makes [p, p + bytes) resident and writable for good; errno value on failure.
int populate(std::byte* p, uint64_t bytes) {
  if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  if (errno != EINVAL) return errno;
  for (uint64_t at = 0; at < bytes; at += kPage) {
    *const_cast<volatile std::byte*>(p + at) = std::byte{0};
  }
  return 0;
}

/// Returns the memory of a range to the system and makes it inaccessible.
void release_pages(std::byte* p, uint64_t bytes) {
  if (madvise(p, bytes, MADV_DONTNEED) == 0) {
    mprotect(p, bytes, PROT_NONE);
    return;
  }
  // Locked pages (a host that calls mlockall) refuse the advice; a fresh mapping drops them.
  mmap(p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  madvise(p, bytes, MADV_HUGEPAGE);
}

Status out_of_memory(const char* what, uint64_t bytes, int error, const MemoryMeter& meter) {
  return Status::native_error(Code::kOutOfMemory, error,
                              "no memory for %s: %" PRIu64 " bytes, %" PRIu64 " bytes are held",
                              what, bytes, meter.live_bytes());
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

Result<HostBuffer> HostBuffer::allocate(MemoryMeter& meter, uint64_t bytes, const char* what) {
  HostBuffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > kMaxBytes) return out_of_memory(what, bytes, ENOMEM, meter);
  // Memory first, admission second: a request that the system refuses must not raise the peak.
  const HostAllocator& host = meter.allocator();
  buffer.data_ = take_block(host, bytes);
  if (buffer.data_ == nullptr) return out_of_memory(what, bytes, ENOMEM, meter);
  if (reinterpret_cast<uintptr_t>(buffer.data_) % alignment_of(bytes) != 0) {
    free_block(host, std::exchange(buffer.data_, nullptr), bytes);
    return Status::error(Code::kInvalidArgument,
                         "host allocator returned memory for %s that is not aligned to %" PRIu64
                         " bytes",
                         what, alignment_of(bytes));
  }
  // Host memory is zeroed only now: what a broken allocator returned is not written.
  if (host.allocate != nullptr) std::memset(buffer.data_, 0, bytes);
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

Result<Reservation> Reservation::reserve(MemoryMeter& meter, uint64_t bytes, const char* what) {
  Reservation range;
  range.meter_ = &meter;
  range.what_ = what;
  if (bytes > kMaxBytes) return out_of_memory(what, bytes, ENOMEM, meter);
  const uint64_t rounded = round_up(bytes, kGranule);
  // Address space is no memory, but it can be refused, so it counts as a request.
  if (!meter.admit(0)) return out_of_memory(what, rounded, ENOMEM, meter);
  if (rounded == 0) return range;
  range.data_ = map_huge_aligned(rounded, PROT_NONE, MAP_NORESERVE);
  if (range.data_ == nullptr) {
    return Status::native_error(Code::kOutOfMemory, errno,
                                "no address space for %s: %" PRIu64 " bytes", what, rounded);
  }
  range.reserved_ = rounded;
  return range;
}

Status Reservation::commit(uint64_t bytes) {
  if (bytes > reserved_) {
    return Status::error(Code::kInvalidArgument,
                         "commit of %" PRIu64 " bytes exceeds the %" PRIu64
                         " bytes reserved for %s",
                         bytes, reserved_, what_);
  }
  const uint64_t wanted = round_up(bytes, kGranule);
  if (wanted <= committed_) return Status::ok();
  std::byte* fresh = data_ + committed_;
  const uint64_t grow = wanted - committed_;
  int error = mprotect(fresh, grow, PROT_READ | PROT_WRITE) == 0 ? 0 : errno;
  if (error == 0) error = populate(fresh, grow);
  if (error == 0 && !meter_->admit(grow)) error = ENOMEM;
  if (error != 0) {
    release_pages(fresh, grow);
    return out_of_memory(what_, grow, error, *meter_);
  }
  committed_ = wanted;
  return Status::ok();
}

void Reservation::decommit(uint64_t bytes) noexcept {
  if (bytes >= committed_) return;
  const uint64_t kept = round_up(bytes, kGranule);
  if (kept >= committed_) return;
  unpoison(data_ + kept, committed_ - kept);  // the system may give the addresses to others
  release_pages(data_ + kept, committed_ - kept);
  meter_->retire(committed_ - kept);
  committed_ = kept;
}

void Reservation::reset() noexcept {
  if (data_ == nullptr) return;
  unpoison(data_, committed_);
  munmap(data_, reserved_);
  meter_->retire(committed_);
  data_ = nullptr;
  reserved_ = committed_ = 0;
}

}  // namespace sharpi
