// SPDX-License-Identifier: MIT
// A regular file, open for reading. Functions that give an int return 0 or the system's error
// number. Thread rule: immutable after open(); any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace sharpi::os {

/// What reading past the end of a file gives; no system's error number.
inline constexpr int kEndOfFile = -1;
/// The system's numbers for what is no file, or none that can be read at any place, and for what
/// it does not have.
extern const int kIsFolder, kNoRegularFile, kNotSupported;

/// The system's sentence for one of its error numbers.
const char* error_text(int error);

class File {
 public:
  File() = default;
  ~File() { close(); }
  File(File&& o) noexcept { swap(o); }
  File& operator=(File&& o) noexcept {
    swap(o);
    return *this;
  }
  struct Facts {
    uint64_t bytes = 0;
    int64_t mtime_ns = 0;  // since 1970
  };
  enum class Kind { kRegular, kFolder, kOther };
  /// What is no regular file is open too, and *kind says so. Never waits, as for a pipe's writer.
  int open(const char* path, Kind* kind);
  void close() noexcept;
  bool is_open() const { return handle_ != -1; }
  /// As it is now.
  int facts(Facts* out) const;
  /// Copies [at, at + bytes); kEndOfFile if the file ends before that.
  int read(uint64_t at, void* out, uint64_t bytes) const;
  /// Maps the first `bytes` bytes, read-only, for unmap_file().
  int map(uint64_t bytes, const std::byte** out) const;
  /// Advice: a range will be read soon, or not again. Pre: not empty.
  void will_need(uint64_t at, uint64_t bytes) const;
  void dont_need(uint64_t at, uint64_t bytes) const;

 private:
  void swap(File& o) noexcept { std::swap(handle_, o.handle_); }
  int64_t handle_ = -1;  // the system's number of the open file
};

void unmap_file(const std::byte* data, uint64_t bytes);
/// Makes a range of a mapped file present, without waiting at a touch later. kEndOfFile: the file
/// ends before that by now. Any other number: the system lacks the function, and nothing happened.
int page_in_file(const std::byte* data, uint64_t bytes);

/// Puts a whole file in the place of a path, all of it at once: who reads finds what was there
/// before, or the new one. It is its owner's alone.
int replace_file(const char* path, const void* data, uint64_t bytes);
/// Makes the last folder of a path, its owner's alone. 0 also where there is one already.
int make_folder(const char* path);

/// Whether a file or folder of a path is not there.
bool is_not_found(int error);

}  // namespace sharpi::os
