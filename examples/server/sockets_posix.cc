// SPDX-License-Identifier: MIT
#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "sockets.h"

namespace server {
namespace {

// The kernel's places for connections that are not accepted yet.
constexpr int kPlaces = 1024;

bool is_nothing_now(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

Socket bound_socket(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return kNoSocket;
  const int yes = 1, no = 0;
  // A port whose connections have ended can be had again at once; one that is taken cannot.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, kPlaces) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return kNoSocket;
}

}  // namespace

Moved send_some(Socket socket, std::string_view text) {
  for (;;) {
    const ssize_t n = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) return {Moved::Why::kDone, static_cast<size_t>(n)};
    if (errno == EINTR) continue;
    return {is_nothing_now(errno) ? Moved::Why::kNothingNow : Moved::Why::kLost, 0};
  }
}

Moved receive_some(Socket socket, char* to, size_t bytes) {
  for (;;) {
    const ssize_t n = recv(socket, to, bytes, MSG_DONTWAIT);
    if (n >= 0) return {Moved::Why::kDone, static_cast<size_t>(n)};
    if (errno == EINTR) continue;
    return {is_nothing_now(errno) ? Moved::Why::kNothingNow : Moved::Why::kLost, 0};
  }
}

bool await_room(Socket socket, int milliseconds) {
  pollfd p{socket, POLLOUT | POLLRDHUP, 0};
  return poll(&p, 1, milliseconds) != 0;
}

bool is_gone(Socket socket) {
  pollfd p{socket, POLLRDHUP, 0};
  return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

Socket listening_socket(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                 std::to_string(port).c_str(), &hints, &found);
  if (status != 0) throw std::runtime_error(gai_strerror(status));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  Socket listener = kNoSocket;
  for (const addrinfo* a = found; a != nullptr && listener == kNoSocket; a = a->ai_next) {
    listener = bound_socket(*a);
  }
  if (listener == kNoSocket) throw std::system_error(errno, std::generic_category(), "bind");
  return listener;
}

int port_of(Socket socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Accepted accept_one(Socket listener) {
  const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) {
    return {kNoSocket, errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS};
  }
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return {fd, false};
}

bool is_numeric_address(const std::string& text) {
  char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, text.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

size_t most_sockets() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, std::numeric_limits<size_t>::max()));
}

void end_sending(Socket socket) {
  ::shutdown(socket, SHUT_WR);
}
void end_both(Socket socket) {
  ::shutdown(socket, SHUT_RDWR);
}
void close_socket(Socket socket) {
  ::close(socket);
}

}  // namespace server
