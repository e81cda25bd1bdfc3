// SPDX-License-Identifier: MIT
#include "poller.h"

/* clang-format off: the first of these comes before the others */
#include <winsock2.h>
#include <ws2tcpip.h>
/* clang-format on */

#include <algorithm>
#include <system_error>
#include <vector>

namespace server {

// The sockets of every call, and their marks. The first one wakes: it is connected with itself.
struct Poller::System {
  std::vector<WSAPOLLFD> sockets;
  std::vector<void*> marks;
  size_t next = 0;  // where the next call begins to look, so that every socket has its turn

  ~System() {
    if (!sockets.empty()) closesocket(sockets.front().fd);
  }
  static SHORT events_of(For what) {
    // One that is watched for nothing is ignored when it is negative.
    return static_cast<SHORT>(what == For::kReading ? POLLIN : what == For::kWriting ? POLLOUT : 0);
  }
  size_t find(Socket socket) const {
    const auto found = std::find_if(sockets.begin() + 1, sockets.end(),
                                    [&](const WSAPOLLFD& p) { return p.fd == socket; });
    return static_cast<size_t>(found - sockets.begin());
  }
};

namespace {

SOCKET own_socket() {
  const SOCKET s = WSASocketW(AF_INET, SOCK_DGRAM, 0, nullptr, 0,
                              WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* at = reinterpret_cast<sockaddr*>(&address);
  int size = sizeof address;
  u_long yes = 1;
  if (s == INVALID_SOCKET || bind(s, at, size) != 0 || getsockname(s, at, &size) != 0 ||
      connect(s, at, size) != 0 || ioctlsocket(s, static_cast<long>(FIONBIO), &yes) != 0) {
    throw std::system_error(WSAGetLastError(), std::system_category(),
                            "the system has no sockets left");
  }
  return s;
}

}  // namespace

Poller::Poller() : system_(std::make_unique<System>()) {
  start_sockets();
  system_->sockets.push_back({own_socket(), POLLIN, 0});
  system_->marks.push_back(this);
}
Poller::~Poller() = default;

void Poller::add(Socket socket, For what, void* mark) {
  system_->marks.reserve(system_->marks.size() + 1);
  system_->sockets.push_back({socket, System::events_of(what), 0});
  system_->marks.push_back(mark);
}
void Poller::change(Socket socket, For what, void* mark) {
  const size_t i = system_->find(socket);
  if (i == system_->sockets.size()) return;
  system_->sockets[i].events = System::events_of(what);
  system_->marks[i] = mark;
}
void Poller::remove(Socket socket) noexcept {
  const size_t i = system_->find(socket);
  if (i == system_->sockets.size()) return;
  system_->sockets[i] = system_->sockets.back();
  system_->marks[i] = system_->marks.back();
  system_->sockets.pop_back();
  system_->marks.pop_back();
}

std::span<const Poller::Event> Poller::wait(int milliseconds) {
  System& s = *system_;
  const int n = WSAPoll(s.sockets.data(), static_cast<ULONG>(s.sockets.size()), milliseconds);
  if (n <= 0) return {};
  if (s.sockets.front().revents != 0) {
    char bytes[64];
    while (::recv(s.sockets.front().fd, bytes, sizeof bytes, 0) > 0) {
    }
  }
  size_t kept = 0;
  const size_t others = s.sockets.size() - 1;
  for (size_t k = 0; k < others && kept < events_.size(); ++k) {
    const size_t i = 1 + (s.next + k) % others;
    const WSAPOLLFD& p = s.sockets[i];
    if (p.revents == 0) continue;
    events_[kept++] = {s.marks[i], (p.revents & POLLOUT) != 0};
    if (kept == events_.size()) s.next = i;
  }
  return {events_.data(), kept};
}

void Poller::wake() noexcept {
  ::send(system_->sockets.front().fd, "", 1, 0);
}

}  // namespace server
