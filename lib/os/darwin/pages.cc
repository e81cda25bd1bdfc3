// SPDX-License-Identifier: MIT
#include "os/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

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

}  // namespace

uint64_t page_size() {
  static const auto bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

void* allocate_aligned(uint64_t alignment, uint64_t bytes) {
  void* p = nullptr;
  return posix_memalign(&p, alignment < sizeof(void*) ? sizeof(void*) : alignment, bytes) == 0
             ? p
             : nullptr;
}

void free_aligned(void* block) {
  std::free(block);
}

std::byte* map_pages(uint64_t bytes, Access access, int* error) {
  void* raw =
      mmap(nullptr, bytes + kHugePage, protection_of(access), MAP_PRIVATE | MAP_ANON, -1, 0);
  if (raw == MAP_FAILED) {
    *error = errno;
    return nullptr;
  }
  const auto address = reinterpret_cast<uintptr_t>(raw);
  const uint64_t head = (kHugePage - address % kHugePage) % kHugePage;
  auto* base = static_cast<std::byte*>(raw);
  if (head != 0) munmap(base, head);
  munmap(base + head + bytes, kHugePage - head);
  return base + head;
}

void unmap_pages(std::byte* p, uint64_t bytes) {
  munmap(p, bytes);
}

int protect_pages(std::byte* p, uint64_t bytes, Access access) {
  return mprotect(p, bytes, protection_of(access)) == 0 ? 0 : errno;
}

int populate_pages(std::byte* p, uint64_t bytes) {
  // There is no advice for this: pages are touched.
  for (uint64_t at = 0; at < bytes; at += page_size())
    *const_cast<volatile std::byte*>(p + at) = std::byte{0};
  return 0;
}

void release_pages(std::byte* p, uint64_t bytes) {
  // Advice leaves pages what they were until the system needs them; a fresh mapping drops them.
  clear_mapping(p, bytes);
}

void clear_mapping(std::byte* p, uint64_t bytes) {
  if (bytes != 0) mmap(p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANON | MAP_FIXED, -1, 0);
}

}  // namespace sharpi::os
