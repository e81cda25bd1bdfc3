// SPDX-License-Identifier: MIT
// For systems where pages cannot be put in the place of others while those are read, or where
// nobody has seen that they can: ranges share none, and a fork has rows of its own, for which it is
// charged.
#include "os/file.h"
#include "os/pages.h"

namespace sharpi::os {

bool can_share_pages() {
  return false;
}

std::byte* map_spare(uint64_t, int* error) {
  *error = kNotSupported;
  return nullptr;
}

int move_pages(std::byte*, uint64_t, std::byte*) {
  return kNotSupported;
}

SharedMemory::~SharedMemory() {
  static_cast<void>(file_);  // there is never one
  static_cast<void>(process_);
}

int SharedMemory::create(uint64_t) {
  return kNotSupported;
}

int SharedMemory::write(uint64_t, const std::byte*, uint64_t) {
  return kNotSupported;
}

int SharedMemory::map_read_only(uint64_t, uint64_t, std::byte*) const {
  return kNotSupported;
}

void SharedMemory::drop(uint64_t, uint64_t) const noexcept {}

}  // namespace sharpi::os
