// SPDX-License-Identifier: MIT
// Lines of a small file that the kernel writes, read by system calls alone: streams of the C++
// library would bring its locales along, a twentieth of the whole where it is linked in.
// Thread rule: one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <string>

namespace sharpi::os {

class TextLines {
 public:
  /// A file that cannot be opened has no lines.
  explicit TextLines(const std::string& path);
  ~TextLines();
  TextLines(const TextLines&) = delete;
  TextLines& operator=(const TextLines&) = delete;

  /// The next line, without its end; false behind the last, or where the file can be read no
  /// further.
  bool next(std::string* line);

 private:
  bool fill();
  int file_;
  size_t at_ = 0, n_ = 0;
  std::array<char, 4096> buffer_;
};

}  // namespace sharpi::os
