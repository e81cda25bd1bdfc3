// SPDX-License-Identifier: MIT
// A regular file mapped read-only, and open for reading. Both outlive the directory entry: the file
// may be renamed or deleted meanwhile. A file that another process shortens raises SIGBUS where the
// mapping is touched, as every mapping does; read() reports it instead.
// Thread rule: immutable after open(); any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace sharpi {

class MappedFile {
 public:
  MappedFile() = default;
  /// kNotFound if there is no such file, kIo otherwise; errno is the native code. An empty file
  /// maps to data() == nullptr.
  static Result<MappedFile> open(const std::string& path);
  ~MappedFile() { reset(); }
  MappedFile(MappedFile&& o) noexcept { swap(o); }
  MappedFile& operator=(MappedFile&& o) noexcept {
    swap(o);
    return *this;
  }

  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  int64_t mtime_ns() const { return mtime_ns_; }  // since 1970
  /// Copies [at, at + bytes) without the mapping. kMismatch if the file ends before that by now,
  /// kIo if the system refuses. Pre: the range lies within bytes().
  Status read(uint64_t at, void* out, uint64_t bytes) const;
  /// Size or time of modification differ from those at open().
  bool has_changed() const;
  /// Asks the system to read a range ahead of its use; returns at once. Clamped to the file.
  void will_need(uint64_t offset, uint64_t bytes) const;
  void reset() noexcept;

 private:
  void swap(MappedFile& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    std::swap(mtime_ns_, o.mtime_ns_);
    std::swap(fd_, o.fd_);
  }
  const std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
  int64_t mtime_ns_ = 0;
  int fd_ = -1;
};

}  // namespace sharpi
