// SPDX-License-Identifier: MIT
// Waits for many sockets at once: poller_linux.cc and poller_windows.cc. A socket is named by a
// mark of the caller's. Thread rule: one thread; wake() from any.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "sockets.h"

namespace server {

class Poller {
 public:
  enum class For { kNothing, kReading, kWriting };
  struct Event {
    void* mark;
    bool writable;  // else there is something to receive, or an end
  };

  /// Throws std::system_error where the system has nothing left for it.
  Poller();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  /// A socket that is not watched yet. Throws std::bad_alloc.
  void add(Socket socket, For what, void* mark);
  /// One that is. Throws std::bad_alloc.
  void change(Socket socket, For what, void* mark);
  /// One that is watched no longer, or never was.
  void remove(Socket socket) noexcept;

  /// What happened until now, or happens within the time; -1: however long it takes. Empty when the
  /// time is over, or wake() was called. The events are there until the next call.
  std::span<const Event> wait(int milliseconds);
  void wake() noexcept;

 private:
  struct System;
  std::unique_ptr<System> system_;
  std::array<Event, 64> events_;
};

}  // namespace server
