// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "support/system.h"

namespace sharpi::test {

void set_environment(const char* name, const std::string& value) {
  setenv(name, value.c_str(), 1);
}

void unset_environment(const char* name) {
  unsetenv(name);
}

bool set_modified(const std::string& path, int64_t seconds, int64_t ns) {
  timespec time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_nsec = static_cast<long>(ns);
  const timespec times[2] = {time, time};
  return utimensat(AT_FDCWD, path.c_str(), times, 0) == 0;
}

uint64_t shared_row_pages() {
  uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code none;
    const std::string target = std::filesystem::read_symlink(entry.path(), none).string();
    struct stat facts {};
    if (target.find("memfd:sharpi-rows") == std::string::npos) continue;
    if (stat(entry.path().c_str(), &facts) == 0)
      bytes += static_cast<uint64_t>(facts.st_blocks) * 512;
  }
  return bytes;
}

}  // namespace sharpi::test
