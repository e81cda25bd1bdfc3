// SPDX-License-Identifier: MIT
#include "os/linux/text_lines.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace sharpi::os {

TextLines::TextLines(const std::string& path) : file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}

TextLines::~TextLines() {
  if (file_ >= 0) ::close(file_);
}

bool TextLines::fill() {
  if (file_ < 0) return false;
  ssize_t n = 0;
  do {
    n = ::read(file_, buffer_.data(), buffer_.size());
  } while (n < 0 && errno == EINTR);
  at_ = 0;
  n_ = n > 0 ? static_cast<size_t>(n) : 0;
  return n_ > 0;
}

bool TextLines::next(std::string* line) {
  line->clear();
  bool any = false;
  while (at_ < n_ || fill()) {
    any = true;
    const char* begin = buffer_.data() + at_;
    const char* end = buffer_.data() + n_;
    const char* stop = std::find(begin, end, '\n');
    line->append(begin, stop);
    at_ += static_cast<size_t>(stop - begin);
    if (stop == end) continue;
    ++at_;
    break;
  }
  return any;
}

}  // namespace sharpi::os
