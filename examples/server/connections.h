// SPDX-License-Identifier: MIT
// The threads that serve connections: made as they are needed, at most so many; further connections
// wait. The HTTP library asks for such a queue once.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace server {

class Connections : public httplib::TaskQueue {
  // What enqueue() returns differs between versions of the library.
  using Enqueued = decltype(std::declval<httplib::TaskQueue&>().enqueue({}));

 public:
  /// Throws std::system_error where not even one thread can be had.
  explicit Connections(size_t most) : most_(most) {
    threads_.emplace_back([this] { work(); });
  }

  Enqueued enqueue(std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (idle_ < tasks_.size() && threads_.size() < most_) add_thread();
    changed_.notify_one();
    return static_cast<Enqueued>(true);
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
      changed_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  // Where there is none to be had, the connection waits for one of those that there are.
  void add_thread() {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
      --idle_;
      if (tasks_.empty()) return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool ending_ = false;
};

}  // namespace server
