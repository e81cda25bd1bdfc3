// SPDX-License-Identifier: MIT
// What buffers and reservations ask of the system. Internal to base. Thread rule: pure functions.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cinttypes>
#include <cstdint>

#include "base/checked.h"
#include "base/memory.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older C library headers lack the name
#endif

namespace sharpi::pages {

inline constexpr uint64_t kHugePage = uint64_t{2} << 20;
inline constexpr uint64_t kPage = 4096;
inline constexpr uint64_t kMaxBytes = uint64_t{1} << 62;  // keeps every rounding overflow-free

/// Maps `bytes` (a page multiple) of anonymous memory at a multiple of 2 MiB; nullptr and errno.
inline std::byte* map_huge_aligned(uint64_t bytes, int protection, int extra_flags) {
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

/// Makes [p, p + bytes) resident and writable for good; errno value on failure.
inline int populate(std::byte* p, uint64_t bytes) {
  if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  // These two say something about the memory. Whatever else a kernel that lacks the advice or a
  // sandbox that forbids it answers does not: the pages are touched instead.
  if (errno == ENOMEM || errno == EHWPOISON) return errno;
  for (uint64_t at = 0; at < bytes; at += kPage) {
    *const_cast<volatile std::byte*>(p + at) = std::byte{0};
  }
  return 0;
}

/// Returns the memory of a range to the system and makes it inaccessible.
inline void release_pages(std::byte* p, uint64_t bytes) {
  if (madvise(p, bytes, MADV_DONTNEED) == 0) {
    mprotect(p, bytes, PROT_NONE);
    return;
  }
  // Locked pages (a host that calls mlockall) refuse the advice; a fresh mapping drops them.
  mmap(p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  madvise(p, bytes, MADV_HUGEPAGE);
}

inline Status out_of_memory(const char* what, uint64_t bytes, int error, const MemoryMeter& meter) {
  return Status::native_error(Code::kOutOfMemory, error,
                              "there is no memory for %s: %" PRIu64 " bytes are needed, %" PRIu64
                              " bytes are held",
                              what, bytes, meter.live_bytes());
}

}  // namespace sharpi::pages
