// SPDX-License-Identifier: MIT
#include "os/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "os/pages.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; older C library headers lack the name
#endif

namespace sharpi::os {

namespace {

int descriptor(int64_t handle) {
  return static_cast<int>(handle);
}

}  // namespace

const int kIsFolder = EISDIR, kNoRegularFile = ENODEV;

const char* error_text(int error) {
  const char* text = strerrordesc_np(error);
  return text == nullptr ? "unknown error" : text;
}

bool is_not_found(int error) {
  return error == ENOENT || error == ENOTDIR;
}

int File::open(const char* path, Kind* kind) {
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  handle_ = ::open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (handle_ < 0) return errno;
  struct stat info;
  if (fstat(descriptor(handle_), &info) != 0) return errno;
  *kind = S_ISREG(info.st_mode)   ? Kind::kRegular
          : S_ISDIR(info.st_mode) ? Kind::kFolder
                                  : Kind::kOther;
  return 0;
}

void File::close() noexcept {
  if (handle_ >= 0) ::close(descriptor(handle_));
  handle_ = -1;
}

int File::facts(Facts* out) const {
  struct stat info;
  if (fstat(descriptor(handle_), &info) != 0) return errno;
  out->bytes = static_cast<uint64_t>(info.st_size);
  out->mtime_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  return 0;
}

int File::read(uint64_t at, void* out, uint64_t bytes) const {
  auto* to = static_cast<std::byte*>(out);
  while (bytes != 0) {
    const ssize_t n =
        pread(descriptor(handle_), to, std::min<uint64_t>(bytes, 1u << 30), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return kEndOfFile;
    to += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return 0;
}

int File::map(uint64_t bytes, const std::byte** out) const {
  void* p = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor(handle_), 0);
  if (p == MAP_FAILED) return errno;
  *out = static_cast<const std::byte*>(p);
  return 0;
}

void File::will_need(uint64_t at, uint64_t bytes) const {
  posix_fadvise(descriptor(handle_), static_cast<off_t>(at), static_cast<off_t>(bytes),
                POSIX_FADV_WILLNEED);
}

void File::dont_need(uint64_t at, uint64_t bytes) const {
  posix_fadvise(descriptor(handle_), static_cast<off_t>(at), static_cast<off_t>(bytes),
                POSIX_FADV_DONTNEED);
}

void unmap_file(const std::byte* data, uint64_t bytes) {
  munmap(const_cast<std::byte*>(data), bytes);
}

int page_in_file(const std::byte* data, uint64_t bytes) {
  const uint64_t into = reinterpret_cast<uintptr_t>(data) % page_size();
  auto* first = const_cast<std::byte*>(data - into);
  if (madvise(first, bytes + into, MADV_POPULATE_READ) == 0) return 0;
  return errno == EFAULT ? kEndOfFile : errno;
}

}  // namespace sharpi::os
