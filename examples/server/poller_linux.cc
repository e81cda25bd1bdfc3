// SPDX-License-Identifier: MIT
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

#include "poller.h"

namespace server {

struct Poller::System {
  int epoll = -1, wakes = -1;
  ~System() {
    if (epoll >= 0) ::close(epoll);
    if (wakes >= 0) ::close(wakes);
  }
  // False: the system has no memory for it.
  bool control(int operation, int socket, For what, void* mark) const {
    epoll_event event{};
    event.events = what == For::kReading ? EPOLLIN : what == For::kWriting ? EPOLLOUT : 0u;
    event.data.ptr = mark;
    return epoll_ctl(epoll, operation, socket, &event) == 0;
  }
};

Poller::Poller() : system_(std::make_unique<System>()) {
  system_->epoll = epoll_create1(EPOLL_CLOEXEC);
  system_->wakes = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (system_->epoll < 0 || system_->wakes < 0 ||
      !system_->control(EPOLL_CTL_ADD, system_->wakes, For::kReading, this)) {
    throw std::system_error(errno, std::generic_category(), "the system has no descriptors left");
  }
}
Poller::~Poller() = default;

void Poller::add(Socket socket, For what, void* mark) {
  if (!system_->control(EPOLL_CTL_ADD, socket, what, mark)) throw std::bad_alloc();
}
void Poller::change(Socket socket, For what, void* mark) {
  if (!system_->control(EPOLL_CTL_MOD, socket, what, mark)) throw std::bad_alloc();
}
void Poller::remove(Socket socket) noexcept {
  system_->control(EPOLL_CTL_DEL, socket, For::kNothing, nullptr);
}

// What wakes has this poller as its mark.
std::span<const Poller::Event> Poller::wait(int milliseconds) {
  std::array<epoll_event, std::tuple_size_v<decltype(events_)>> events;
  const int n =
      epoll_wait(system_->epoll, events.data(), static_cast<int>(events.size()), milliseconds);
  size_t kept = 0;
  for (int i = 0; i < n; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.ptr == this) {
      uint64_t times = 0;
      [[maybe_unused]] const ssize_t n_read = ::read(system_->wakes, &times, sizeof times);
      continue;
    }
    events_[kept++] = {event.data.ptr, (event.events & EPOLLOUT) != 0};
  }
  return {events_.data(), kept};
}

void Poller::wake() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(system_->wakes, &one, sizeof one);
}

}  // namespace server
