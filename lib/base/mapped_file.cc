// SPDX-License-Identifier: MIT
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sharpi {
namespace {

Status io_error(const std::string& path, const char* verb, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo;
  return Status::native_error(code, error, "cannot %s %s: %s", verb, path.c_str(),
                              strerrordesc_np(error));
}

int64_t mtime_of(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  MappedFile mapped;
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  mapped.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (mapped.fd_ < 0) return io_error(path, "open", errno);
  struct stat info;
  if (fstat(mapped.fd_, &info) != 0) return io_error(path, "examine", errno);
  if (S_ISDIR(info.st_mode)) return io_error(path, "map", EISDIR);
  if (!S_ISREG(info.st_mode)) {
    return Status::native_error(Code::kIo, ENODEV, "cannot map %s: it is not a regular file",
                                path.c_str());
  }
  mapped.mtime_ns_ = mtime_of(info);
  if (info.st_size == 0) return mapped;
  const auto bytes = static_cast<uint64_t>(info.st_size);
  void* p = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, mapped.fd_, 0);
  if (p == MAP_FAILED) return io_error(path, "map", errno);
  mapped.data_ = static_cast<const std::byte*>(p);
  mapped.bytes_ = bytes;
  return mapped;
}

Status MappedFile::read(uint64_t at, void* out, uint64_t bytes) const {
  auto* to = static_cast<std::byte*>(out);
  while (bytes != 0) {
    const ssize_t n = pread(fd_, to, std::min<uint64_t>(bytes, 1u << 30), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return Status::native_error(Code::kIo, errno, "cannot read the file: %s",
                                  strerrordesc_np(errno));
    }
    if (n == 0) return Status::error(Code::kMismatch, "the file became shorter while it was used");
    to += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return Status::ok();
}

bool MappedFile::has_changed() const {
  struct stat info;
  if (fd_ < 0) return false;
  return fstat(fd_, &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes_ ||
         mtime_of(info) != mtime_ns_;
}

void MappedFile::will_need(uint64_t offset, uint64_t bytes) const {
  if (offset >= bytes_) return;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = offset / page * page;
  const uint64_t end = offset + std::min(bytes, bytes_ - offset);
  madvise(const_cast<std::byte*>(data_ + begin), end - begin, MADV_WILLNEED);
}

void MappedFile::reset() noexcept {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), bytes_);
  if (fd_ >= 0) close(fd_);
  data_ = nullptr;
  bytes_ = 0;
  fd_ = -1;
}

}  // namespace sharpi
