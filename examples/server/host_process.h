// SPDX-License-Identifier: MIT
// What the server asks of its process: host_process_posix.cc and host_process_windows.cc. Texts are
// UTF-8 on every system. Thread rule: the main thread, but for path_of(), utf8_of() and utc_text().
#pragma once

#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace server {

std::filesystem::path path_of(const std::string& text);
std::string utf8_of(const std::filesystem::path& path);
/// A second since 1970 as 2026-11-28T12:34:56Z.
std::string utc_text(std::time_t seconds);

/// What is behind the program's name, of main()'s arguments; and output is written as it is said.
std::vector<std::string> program_arguments(int argc, char** argv);
/// NAME=VALUE each.
std::vector<std::string> environment_texts();

/// From now on a request to end the process is kept for StopWaiter, and the ends of others'
/// connections and full disks are statuses. Before threads of the server are made.
void keep_stop_requests();
/// Calls a function, on a thread of its own, when the process is to end (Ctrl-C, a signal, a closed
/// console).
class StopWaiter {
 public:
  explicit StopWaiter(std::function<void()> stop);
  ~StopWaiter();
  StopWaiter(const StopWaiter&) = delete;
  StopWaiter& operator=(const StopWaiter&) = delete;

 private:
  struct System;
  std::unique_ptr<System> system_;
};

}  // namespace server
