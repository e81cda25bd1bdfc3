// SPDX-License-Identifier: MIT
#include "os/pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older C library headers lack the name
#endif

namespace sharpi::os {
namespace {

int protection_of(Access access) {
  switch (access) {
    case Access::kNone:
      return PROT_NONE;
    case Access::kRead:
      return PROT_READ;
    case Access::kReadWrite:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

/// Advice only: a kernel without transparent huge pages refuses it and nothing is lost.
void prefer_huge_pages(void* p, uint64_t bytes) {
  madvise(p, bytes, MADV_HUGEPAGE);
}

constexpr int kNothing = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

uint64_t page_size() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void* allocate_aligned(uint64_t alignment, uint64_t bytes) {
  return std::aligned_alloc(alignment, bytes);
}

void free_aligned(void* block) {
  std::free(block);
}

std::byte* map_pages(uint64_t bytes, Access access, int* error) {
  const int flags = access == Access::kNone ? kNothing : MAP_PRIVATE | MAP_ANONYMOUS;
  void* raw = mmap(nullptr, bytes + kHugePage, protection_of(access), flags, -1, 0);
  if (raw == MAP_FAILED) {
    *error = errno;
    return nullptr;
  }
  const auto address = reinterpret_cast<uintptr_t>(raw);
  const uint64_t head = (kHugePage - address % kHugePage) % kHugePage;
  auto* base = static_cast<std::byte*>(raw);
  if (head != 0) munmap(base, head);
  munmap(base + head + bytes, kHugePage - head);
  prefer_huge_pages(base + head, bytes);
  return base + head;
}

void unmap_pages(std::byte* p, uint64_t bytes) {
  munmap(p, bytes);
}

int protect_pages(std::byte* p, uint64_t bytes, Access access) {
  return mprotect(p, bytes, protection_of(access)) == 0 ? 0 : errno;
}

int populate_pages(std::byte* p, uint64_t bytes) {
  if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0) return 0;
  // These two say something about the memory. Whatever else a kernel that lacks the advice or a
  // sandbox that forbids it answers does not: the pages are touched instead.
  if (errno == ENOMEM || errno == EHWPOISON) return errno;
  for (uint64_t at = 0; at < bytes; at += page_size())
    *const_cast<volatile std::byte*>(p + at) = std::byte{0};
  return 0;
}

void release_pages(std::byte* p, uint64_t bytes) {
  if (madvise(p, bytes, MADV_DONTNEED) == 0) {
    mprotect(p, bytes, PROT_NONE);
    return;
  }
  // Locked pages (a host that calls mlockall) refuse the advice; a fresh mapping drops them.
  clear_mapping(p, bytes);
  prefer_huge_pages(p, bytes);
}

void clear_mapping(std::byte* p, uint64_t bytes) {
  if (bytes != 0) mmap(p, bytes, PROT_NONE, kNothing | MAP_FIXED, -1, 0);
}

bool can_share_pages() {
  return true;
}

std::byte* map_spare(uint64_t bytes, int* error) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  *error = p == MAP_FAILED ? errno : populate_pages(static_cast<std::byte*>(p), bytes);
  if (*error == 0) return static_cast<std::byte*>(p);
  if (p != MAP_FAILED) munmap(p, bytes);
  return nullptr;
}

int move_pages(std::byte* spare, uint64_t bytes, std::byte* to) {
  void* moved = mremap(spare, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to);
  return moved == MAP_FAILED ? errno : 0;
}

SharedMemory::~SharedMemory() {
  if (file_ >= 0) close(file_);
}

int SharedMemory::create(uint64_t bytes) {
  // A file that is too large for the process would be answered with a signal.
  rlimit most{};
  if (getrlimit(RLIMIT_FSIZE, &most) == 0 && most.rlim_cur != RLIM_INFINITY &&
      bytes > most.rlim_cur) {
    return EFBIG;
  }
  process_ = getpid();
  file_ = memfd_create("sharpi-rows", MFD_CLOEXEC);
  if (file_ < 0) return errno;
  return ftruncate(file_, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
}

int SharedMemory::write(uint64_t at, const std::byte* from, uint64_t bytes) {
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t n = pwrite(file_, from + done, bytes - done, static_cast<off_t>(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return ENOSPC;
    done += static_cast<uint64_t>(n);
  }
  return 0;
}

int SharedMemory::map_read_only(uint64_t at, uint64_t bytes, std::byte* to) const {
  void* p = mmap(to, bytes, PROT_READ, MAP_SHARED | MAP_FIXED, file_, static_cast<off_t>(at));
  if (p == MAP_FAILED) return errno;
  prefer_huge_pages(p, bytes);
  return 0;
}

void SharedMemory::drop(uint64_t at, uint64_t bytes) const noexcept {
  if (file_ < 0 || getpid() != process_) return;
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
            static_cast<off_t>(bytes));
}

}  // namespace sharpi::os
