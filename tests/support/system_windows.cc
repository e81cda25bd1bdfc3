// SPDX-License-Identifier: MIT
#include <cstdlib>

#include "os/windows/system.h"
#include "support/system.h"

namespace sharpi::test {

void set_environment(const char* name, const std::string& value) {
  _putenv_s(name, value.c_str());
}

// Here a variable without a value is none.
void unset_environment(const char* name) {
  _putenv_s(name, "");
}

bool set_modified(const std::string& path, int64_t seconds, int64_t ns) {
  const HANDLE file =
      CreateFileW(os::wide(path).c_str(), FILE_WRITE_ATTRIBUTES, FILE_SHARE_READ | FILE_SHARE_WRITE,
                  nullptr, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL, nullptr);
  if (file == INVALID_HANDLE_VALUE) return false;
  constexpr int64_t kTicksTo1970 = 116'444'736'000'000'000;  // since 1601, in 100 ns
  const auto ticks = static_cast<uint64_t>(kTicksTo1970 + seconds * 10'000'000 + ns / 100);
  const FILETIME time{static_cast<DWORD>(ticks), static_cast<DWORD>(ticks >> 32)};
  const bool done = SetFileTime(file, nullptr, &time, &time) != 0;
  CloseHandle(file);
  return done;
}

uint64_t shared_row_pages() {
  return 0;
}

}  // namespace sharpi::test
