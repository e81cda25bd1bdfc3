// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <sys/stat.h>

#include <cstdlib>

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

}  // namespace sharpi::test
