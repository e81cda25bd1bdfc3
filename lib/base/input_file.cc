// SPDX-License-Identifier: MIT
#include "base/input_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22  // Linux 5.14; older C library headers lack the name
#endif

namespace sharpi {
namespace {

constexpr uint64_t kPassing = uint64_t{1} << 20;

Status io_error(const std::string& path, const char* verb, int error) {
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIo;
  return Status::native_error(code, error, "cannot %s %s: %s", verb, path.c_str(),
                              strerrordesc_np(error));
}

Status shorter() {
  return Status::error(Code::kMismatch, "the file became shorter while it was used");
}

int64_t mtime_of(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

Result<InputFile> InputFile::open(const std::string& path) {
  InputFile file;
  // Without O_NONBLOCK the open of a named pipe would wait for a writer.
  file.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.fd_ < 0) return io_error(path, "open", errno);
  struct stat info;
  if (fstat(file.fd_, &info) != 0) return io_error(path, "examine", errno);
  if (S_ISDIR(info.st_mode)) return io_error(path, "read", EISDIR);
  if (!S_ISREG(info.st_mode)) {
    return Status::native_error(Code::kIo, ENODEV, "cannot read %s: it is not a regular file",
                                path.c_str());
  }
  file.mtime_ns_ = mtime_of(info);
  file.bytes_ = static_cast<uint64_t>(info.st_size);
  return file;
}

Status InputFile::read(uint64_t at, void* out, uint64_t bytes) const {
  auto* to = static_cast<std::byte*>(out);
  while (bytes != 0) {
    const ssize_t n = pread(fd_, to, std::min<uint64_t>(bytes, 1u << 30), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return Status::native_error(Code::kIo, errno, "cannot read the file: %s",
                                  strerrordesc_np(errno));
    }
    if (n == 0) return shorter();
    to += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return Status::ok();
}

bool InputFile::has_changed() const {
  struct stat info;
  if (fd_ < 0) return false;
  return fstat(fd_, &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes_ ||
         mtime_of(info) != mtime_ns_;
}

void InputFile::will_need(uint64_t at, uint64_t bytes) const {
  if (at >= bytes_) return;
  posix_fadvise(fd_, static_cast<off_t>(at), static_cast<off_t>(std::min(bytes, bytes_ - at)),
                POSIX_FADV_WILLNEED);
}

void InputFile::dont_need(uint64_t at, uint64_t bytes) const {
  if (at >= bytes_) return;
  posix_fadvise(fd_, static_cast<off_t>(at), static_cast<off_t>(std::min(bytes, bytes_ - at)),
                POSIX_FADV_DONTNEED);
}

Result<FileMapping> InputFile::map() const {
  FileMapping mapping;
  if (bytes_ == 0) return mapping;
  void* p = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, fd_, 0);
  if (p == MAP_FAILED) {
    return Status::native_error(Code::kIo, errno, "cannot map the file: %s",
                                strerrordesc_np(errno));
  }
  mapping.data_ = static_cast<const std::byte*>(p);
  mapping.bytes_ = bytes_;
  return mapping;
}

Status InputFile::page_in(const FileMapping& mapping, uint64_t at, uint64_t bytes) const {
  if (bytes == 0) return Status::ok();
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = at / page * page;
  auto* first = const_cast<std::byte*>(mapping.data() + begin);
  if (madvise(first, at + bytes - begin, MADV_POPULATE_READ) == 0) return Status::ok();
  if (errno == EFAULT) return shorter();
  // The system lacks the advice. Reading brings the pages into its cache, from where a touch maps
  // them without waiting, and finds an end that moved.
  std::vector<std::byte> passing(std::min(bytes, kPassing));
  for (uint64_t done = 0; done < bytes; done += kPassing)
    SHARPI_TRY(read(at + done, passing.data(), std::min(kPassing, bytes - done)));
  return Status::ok();
}

void InputFile::reset() noexcept {
  if (fd_ >= 0) close(fd_);
  bytes_ = 0;
  mtime_ns_ = 0;
  fd_ = -1;
}

void FileMapping::reset() noexcept {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace sharpi
