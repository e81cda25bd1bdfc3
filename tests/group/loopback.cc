// SPDX-License-Identifier: MIT
#include "group/loopback.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <utility>

namespace sharpi::testing {
namespace {

using Clock = std::chrono::steady_clock;

void check(bool ok, const char* what) {
  if (ok) return;
  std::perror(what);
  std::abort();
}

void prepare(int socket) {
  const int one = 1;
  check(setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0, "TCP_NODELAY");
  check(fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK) == 0, "O_NONBLOCK");
}

std::pair<int, int> connected_pair() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  check(listener >= 0, "socket");
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  auto* address = reinterpret_cast<sockaddr*>(&at);
  check(bind(listener, address, size) == 0 && listen(listener, 1) == 0, "listen");
  check(getsockname(listener, address, &size) == 0, "getsockname");
  const int one = socket(AF_INET, SOCK_STREAM, 0);
  check(one >= 0 && connect(one, address, size) == 0, "connect");
  const int other = accept(listener, nullptr, nullptr);
  check(other >= 0, "accept");
  close(listener);
  prepare(one);
  prepare(other);
  return {one, other};
}

/// Until the socket can be read or written; 0 or an errno.
int wait_for(int socket, short events, Clock::time_point end) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    if (left.count() < 0) return ETIMEDOUT;
    pollfd p{socket, events, 0};
    const int n = poll(&p, 1, static_cast<int>(std::min<int64_t>(left.count() + 1, 1000)));
    if (n > 0) return 0;
    if (n < 0 && errno != EINTR) return errno;
  }
}

/// Moves all bytes by `once`, which is send() or recv(); 0 or an errno.
template <class Once>
int move_all(int socket, short events, uint64_t bytes, Clock::time_point end, const Once& once) {
  for (uint64_t at = 0; at < bytes;) {
    const ssize_t n = once(at, bytes - at);
    if (n > 0) {
      at += static_cast<uint64_t>(n);
    } else if (n == 0) {
      return EPIPE;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      const int failed = wait_for(socket, events, end);
      if (failed != 0) return failed;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

int write_all(int socket, const void* data, uint64_t bytes, Clock::time_point end) {
  return move_all(socket, POLLOUT, bytes, end, [&](uint64_t at, uint64_t n) {
    return ::send(socket, static_cast<const char*>(data) + at, n, MSG_NOSIGNAL);
  });
}

int read_all(int socket, void* out, uint64_t bytes, Clock::time_point end) {
  return move_all(socket, POLLIN, bytes, end, [&](uint64_t at, uint64_t n) {
    return ::recv(socket, static_cast<char*>(out) + at, n, 0);
  });
}

uint32_t left_of(Deadline deadline) {
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<uint32_t>(std::max<int64_t>(left, 0));
}

Status status_of(int failed) {
  if (failed == 0) return Status::ok();
  return Status::native_error(Code::kDevice, failed, "the loopback failed with %d", failed);
}

}  // namespace

std::vector<std::vector<int>> connect_ranks(uint32_t n) {
  std::vector<std::vector<int>> all(n, std::vector<int>(n, -1));
  for (uint32_t a = 0; a < n; ++a)
    for (uint32_t b = a + 1; b < n; ++b) std::tie(all[a][b], all[b][a]) = connected_pair();
  return all;
}

void close_sockets(const std::vector<int>& sockets) {
  for (const int s : sockets)
    if (s >= 0) close(s);
}

void Loopback::count() {
  ++n_messages_;
  if (falls_in_ != 0 && --falls_in_ == 0) raise(signal_);
}

int Loopback::send(uint32_t to, const void* data, uint64_t bytes, uint32_t timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  char taken = 0;
  count();
  const int failed = write_all(sockets_[to], data, bytes, end);
  return failed != 0 ? failed : read_all(sockets_[to], &taken, 1, end);
}

int Loopback::receive(uint32_t from, void* out, uint64_t bytes, uint32_t timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  count();
  const int failed = read_all(sockets_[from], out, bytes, end);
  const char taken = 1;
  return failed != 0 ? failed : write_all(sockets_[from], &taken, 1, end);
}

void Loopback::abandon() {
  close_sockets(sockets_);
  std::fill(sockets_.begin(), sockets_.end(), -1);
}

int32_t Loopback::send_fn(void* self, uint32_t to, const void* data, uint64_t bytes,
                          uint32_t timeout_ms) {
  return static_cast<Loopback*>(self)->send(to, data, bytes, timeout_ms);
}

int32_t Loopback::receive_fn(void* self, uint32_t from, void* out, uint64_t bytes,
                             uint32_t timeout_ms) {
  return static_cast<Loopback*>(self)->receive(from, out, bytes, timeout_ms);
}

void Loopback::abandon_fn(void* self) {
  static_cast<Loopback*>(self)->abandon();
}

Status LoopbackTransport::send(uint32_t to, const void* data, uint64_t bytes, Deadline deadline) {
  return status_of(link_.send(to, data, bytes, left_of(deadline)));
}

Status LoopbackTransport::receive(uint32_t from, void* out, uint64_t bytes, Deadline deadline) {
  return status_of(link_.receive(from, out, bytes, left_of(deadline)));
}

}  // namespace sharpi::testing
