// SPDX-License-Identifier: MIT
#include "os/posix/file_details.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "os/file.h"
#include "os/pages.h"

namespace sharpi::os {

const timespec& modified(const struct stat& info) {
  return info.st_mtimespec;
}

void advise_reading(int file, uint64_t at, uint64_t bytes) {
  for (uint64_t done = 0; done < bytes;) {
    radvisory range{};
    range.ra_offset = static_cast<off_t>(at + done);
    range.ra_count = static_cast<int>(std::min<uint64_t>(bytes - done, INT_MAX));
    if (fcntl(file, F_RDADVISE, &range) != 0) return;
    done += static_cast<uint64_t>(range.ra_count);
  }
}

// The system drops what was read once by itself, and has no advice for a range.
void advise_forgetting(int, uint64_t, uint64_t) {}

int page_in_file(const std::byte* data, uint64_t bytes) {
  // Advice: a page that is not there yet is read at its first touch.
  const uint64_t into = reinterpret_cast<uintptr_t>(data) % page_size();
  madvise(const_cast<std::byte*>(data - into), bytes + into, MADV_WILLNEED);
  return ENOTSUP;
}

const char* error_text(int error) {
  thread_local char text[128];
  return strerror_r(error, text, sizeof text) == 0 ? text : "unknown error";
}

}  // namespace sharpi::os
