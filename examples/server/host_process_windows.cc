// SPDX-License-Identifier: MIT
#include "host_process.h"

/* clang-format off: this header comes before those that need it */
#include <windows.h>
/* clang-format on */
#include <fcntl.h>
#include <io.h>
#include <shellapi.h>

#include <cstdlib>
#include <cwchar>
#include <mutex>

namespace server {
namespace {

std::mutex mutex;
std::function<void()> stop_now;  // empty: nobody waits

// On a thread of the system's. When a console is closed, or the session ends, the process ends as
// soon as this returns: it goes on until the server has ended by itself.
BOOL WINAPI on_stop(DWORD kind) {
  {
    const std::lock_guard lock(mutex);
    if (!stop_now) return FALSE;
    stop_now();
  }
  if (kind != CTRL_C_EVENT && kind != CTRL_BREAK_EVENT) Sleep(INFINITE);
  return TRUE;
}

}  // namespace

// The run-time library gives them in the code page of the process, where not all can be said.
std::vector<std::string> program_arguments(int argc, char** argv) {
  static const UINT code_page = GetConsoleOutputCP();
  if (code_page != 0 && SetConsoleOutputCP(CP_UTF8)) {
    std::atexit([] { SetConsoleOutputCP(code_page); });  // the console is the host's
  }
  _setmode(_fileno(stdout), _O_BINARY);
  int n = 0;
  wchar_t** const wide = CommandLineToArgvW(GetCommandLineW(), &n);
  if (wide == nullptr) return {argv + 1, argv + argc};
  std::vector<std::string> all;
  for (int i = 1; i < n; ++i) all.push_back(utf8_of(std::filesystem::path(wide[i])));
  LocalFree(wide);
  return all;
}

std::vector<std::string> environment_texts() {
  std::vector<std::string> all;
  wchar_t* const block = GetEnvironmentStringsW();
  for (const wchar_t* entry = block; entry != nullptr && *entry != 0;
       entry += std::wcslen(entry) + 1) {
    all.push_back(utf8_of(std::filesystem::path(entry)));
  }
  if (block != nullptr) FreeEnvironmentStringsW(block);
  return all;
}

void keep_stop_requests() {}

struct StopWaiter::System {};

StopWaiter::StopWaiter(std::function<void()> stop) {
  const std::lock_guard lock(mutex);
  stop_now = std::move(stop);
  SetConsoleCtrlHandler(on_stop, TRUE);
}

StopWaiter::~StopWaiter() {
  SetConsoleCtrlHandler(on_stop, FALSE);
  const std::lock_guard lock(mutex);
  stop_now = nullptr;
}

}  // namespace server
