// SPDX-License-Identifier: MIT
// Threads that serve whole requests: made as they are needed, at most so many; further requests
// wait. Thread rule: any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "connection.h"

namespace server {

class Workers {
 public:
  /// @param serve is called with each connection; it may not throw.
  /// Throws std::system_error where not even one thread can be had.
  Workers(size_t most, std::function<void(Connection&)> serve);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  void add(Connection& connection);
  /// Those that wait or are served.
  size_t busy() const;
  /// Waits until all are served, those that wait included.
  void finish();

 private:
  void add_thread();
  void work();

  const size_t most_;
  const std::function<void(Connection&)> serve_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Connection* first_ = nullptr;  // of those that wait
  Connection* last_ = nullptr;
  size_t n_waiting_ = 0, idle_ = 0, serving_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace server
