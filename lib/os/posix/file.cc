// SPDX-License-Identifier: MIT
#include "os/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>

#include "os/posix/file_details.h"
#include "os/random.h"

namespace sharpi::os {
namespace {

int descriptor(int64_t handle) {
  return static_cast<int>(handle);
}

}  // namespace

const int kIsFolder = EISDIR, kNoRegularFile = ENODEV, kNotSupported = ENOTSUP;

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
  const timespec& time = modified(info);
  out->mtime_ns = int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
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
  advise_reading(descriptor(handle_), at, bytes);
}

void File::dont_need(uint64_t at, uint64_t bytes) const {
  advise_forgetting(descriptor(handle_), at, bytes);
}

namespace {

int write_all(int file, const void* data, uint64_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  while (bytes != 0) {
    const ssize_t n = ::write(file, from, std::min<uint64_t>(bytes, 1u << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    from += n;
    bytes -= static_cast<uint64_t>(n);
  }
  return 0;
}

}  // namespace

int replace_file(const char* path, const void* data, uint64_t bytes) {
  uint64_t number = 0;
  if (!random_bytes(&number, sizeof number)) number = static_cast<uint64_t>(getpid());
  const std::string beside = std::string(path) + "." + std::to_string(number);
  const int file = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return errno;
  int error = write_all(file, data, bytes);
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0 && ::rename(beside.c_str(), path) != 0) error = errno;
  if (error != 0) ::unlink(beside.c_str());
  return error;
}

int make_folder(const char* path) {
  if (::mkdir(path, 0700) == 0) return 0;
  const int error = errno;
  struct stat info;
  return error == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode) ? 0 : error;
}

void unmap_file(const std::byte* data, uint64_t bytes) {
  munmap(const_cast<std::byte*>(data), bytes);
}

}  // namespace sharpi::os
