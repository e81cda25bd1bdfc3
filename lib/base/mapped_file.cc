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

struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) close(fd);
  }
};

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  const FileDescriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return io_error(path, "open", errno);
  struct stat info;
  if (fstat(file.fd, &info) != 0) return io_error(path, "examine", errno);
  if (S_ISDIR(info.st_mode)) return io_error(path, "map", EISDIR);
  if (!S_ISREG(info.st_mode)) {
    return Status::native_error(Code::kIo, ENODEV, "cannot map %s: not a regular file",
                                path.c_str());
  }
  MappedFile mapped;
  mapped.mtime_ns_ = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  if (info.st_size == 0) return mapped;
  const auto bytes = static_cast<uint64_t>(info.st_size);
  void* p = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (p == MAP_FAILED) return io_error(path, "map", errno);
  mapped.data_ = static_cast<const std::byte*>(p);
  mapped.bytes_ = bytes;
  return mapped;
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
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace sharpi
