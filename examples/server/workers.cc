// SPDX-License-Identifier: MIT
#include "workers.h"

#include <exception>

namespace server {

Workers::Workers(size_t most, std::function<void(Connection&)> serve)
    : most_(most), serve_(std::move(serve)) {
  threads_.reserve(most);
  threads_.emplace_back([this] { work(); });
}

Workers::~Workers() {
  finish();
}

void Workers::add(Connection& connection) {
  const std::lock_guard lock(mutex_);
  connection.next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = &connection;
  last_ = &connection;
  ++n_waiting_;
  if (idle_ < n_waiting_ && threads_.size() < most_) add_thread();
  changed_.notify_one();
}

size_t Workers::busy() const {
  const std::lock_guard lock(mutex_);
  return n_waiting_ + serving_;
}

// Where there is none to be had, the connection waits for one of those that there are.
void Workers::add_thread() {
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::exception&) {
  }
}

void Workers::finish() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Workers::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [&] { return ending_ || first_ != nullptr; });
    --idle_;
    if (first_ == nullptr) return;
    Connection& connection = *first_;
    first_ = connection.next;
    --n_waiting_;
    ++serving_;
    lock.unlock();
    serve_(connection);
    lock.lock();
    --serving_;
  }
}

}  // namespace server
