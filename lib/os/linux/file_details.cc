// SPDX-License-Identifier: MIT
#include "os/posix/file_details.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "os/file.h"
#include "os/pages.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; older C library headers lack the name
#endif

namespace sharpi::os {

const timespec& modified(const struct stat& info) {
  return info.st_mtim;
}

void advise_reading(int file, uint64_t at, uint64_t bytes) {
  posix_fadvise(file, static_cast<off_t>(at), static_cast<off_t>(bytes), POSIX_FADV_WILLNEED);
}

void advise_forgetting(int file, uint64_t at, uint64_t bytes) {
  posix_fadvise(file, static_cast<off_t>(at), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
}

int page_in_file(const std::byte* data, uint64_t bytes) {
  const uint64_t into = reinterpret_cast<uintptr_t>(data) % page_size();
  auto* first = const_cast<std::byte*>(data - into);
  if (madvise(first, bytes + into, MADV_POPULATE_READ) == 0) return 0;
  return errno == EFAULT ? kEndOfFile : errno;
}

const char* error_text(int error) {
  const char* text = strerrordesc_np(error);
  return text == nullptr ? "unknown error" : text;
}

}  // namespace sharpi::os
