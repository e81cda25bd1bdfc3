// SPDX-License-Identifier: MIT
// A regular file that is open for reading; it may be renamed or deleted meanwhile. If another
// process shortens it, read() reports that; a thread that touches the missing part of a mapping
// gets SIGBUS, which ends the process, so nothing is mapped unless map() is called. Thread rule:
// immutable after open(); any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"
#include "os/file.h"

namespace sharpi {

/// A whole file in memory, read-only. It needs the file no longer.
class FileMapping {
 public:
  FileMapping() = default;
  ~FileMapping() { reset(); }
  FileMapping(FileMapping&& o) noexcept { swap(o); }
  FileMapping& operator=(FileMapping&& o) noexcept {
    swap(o);
    return *this;
  }
  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  void reset() noexcept;

 private:
  friend class InputFile;
  void swap(FileMapping& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
  }
  const std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

class InputFile {
 public:
  InputFile() = default;
  /// kNotFound if there is no such file, kIo otherwise; the system's error number is the native
  /// code.
  static Result<InputFile> open(const std::string& path);

  bool is_open() const { return file_.is_open(); }
  uint64_t bytes() const { return facts_.bytes; }       // at open()
  int64_t mtime_ns() const { return facts_.mtime_ns; }  // at open(), since 1970
  /// Copies [at, at + bytes). kMismatch if the file ends before that by now, kIo if the system
  /// refuses. Pre: the range lies within bytes().
  Status read(uint64_t at, void* out, uint64_t bytes) const;
  /// Size or time of modification differ from those at open().
  bool has_changed() const;
  /// Asks the system to read a range ahead of its use; returns at once. Clamped to the file.
  void will_need(uint64_t at, uint64_t bytes) const;
  /// Tells the system that nobody here reads a range again: it may forget what it holds of it.
  void dont_need(uint64_t at, uint64_t bytes) const;
  /// Maps the file, as long as it was at open(). An empty one has data() == nullptr. kIo if the
  /// system refuses.
  Result<FileMapping> map() const;
  /// Makes a range of a mapping of this file present; returns when it is. kMismatch if the file
  /// ends before that by now. Pre: the range lies within the mapping.
  Status page_in(const FileMapping& mapping, uint64_t at, uint64_t bytes) const;

 private:
  os::File file_;
  os::File::Facts facts_;
};

}  // namespace sharpi
