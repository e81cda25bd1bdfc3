// SPDX-License-Identifier: MIT
// Memory is charged when it is committed, so a later write cannot fail for want of it. Pages of a
// section cannot be put in the place of others while those are read (placeholders could, from
// Windows 10 1803 on, but not on all systems that are promised): hence private_pages.cc.
#include "os/pages.h"

#include <malloc.h>

#include "os/windows/system.h"

namespace sharpi::os {
namespace {

DWORD protection_of(Access access) {
  switch (access) {
    case Access::kNone:
      return PAGE_NOACCESS;
    case Access::kRead:
      return PAGE_READONLY;
    case Access::kReadWrite:
      return PAGE_READWRITE;
  }
  return PAGE_NOACCESS;
}

}  // namespace

uint64_t page_size() {
  static const uint64_t bytes = [] {
    SYSTEM_INFO info{};
    GetSystemInfo(&info);
    return uint64_t{info.dwPageSize};
  }();
  return bytes;
}

void* allocate_aligned(uint64_t alignment, uint64_t bytes) {
  return _aligned_malloc(bytes, alignment);
}

void free_aligned(void* block) {
  _aligned_free(block);
}

std::byte* map_pages(uint64_t bytes, Access access, int* error) {
  // The addresses in front of a multiple and behind the range stay reserved: they take no memory,
  // and nothing of an allocation's addresses can go back alone.
  auto* raw =
      static_cast<std::byte*>(VirtualAlloc(nullptr, bytes + kHugePage, MEM_RESERVE, PAGE_NOACCESS));
  if (raw == nullptr) {
    *error = last_error();
    return nullptr;
  }
  const auto address = reinterpret_cast<uintptr_t>(raw);
  std::byte* p = raw + (kHugePage - address % kHugePage) % kHugePage;
  if (access == Access::kNone ||
      VirtualAlloc(p, bytes, MEM_COMMIT, protection_of(access)) != nullptr) {
    return p;
  }
  *error = last_error();
  VirtualFree(raw, 0, MEM_RELEASE);
  return nullptr;
}

void unmap_pages(std::byte* p, uint64_t) {
  MEMORY_BASIC_INFORMATION info{};
  if (VirtualQuery(p, &info, sizeof info) != 0) VirtualFree(info.AllocationBase, 0, MEM_RELEASE);
}

int protect_pages(std::byte* p, uint64_t bytes, Access access) {
  if (bytes == 0) return 0;
  // Pages that are committed already keep their contents and get the protection.
  if (access != Access::kNone)
    return VirtualAlloc(p, bytes, MEM_COMMIT, protection_of(access)) != nullptr ? 0 : last_error();
  return VirtualFree(p, bytes, MEM_DECOMMIT) ? 0 : last_error();
}

int populate_pages(std::byte*, uint64_t) {
  return 0;  // committed: the system has set the memory aside
}

void release_pages(std::byte* p, uint64_t bytes) {
  if (bytes != 0) VirtualFree(p, bytes, MEM_DECOMMIT);
}

void clear_mapping(std::byte* p, uint64_t bytes) {
  release_pages(p, bytes);
}

}  // namespace sharpi::os
