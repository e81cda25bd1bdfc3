// SPDX-License-Identifier: MIT
#include "peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

namespace server {
namespace {

int port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  }
  return -1;
}

std::string text_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  const void* bytes =
      address.ss_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
          : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  inet_ntop(address.ss_family, bytes, text, sizeof text);
  return text;
}

bool is_socket_of(int fd, const httplib::Request& request) {
  sockaddr_storage mine{}, theirs{};
  socklen_t size = sizeof theirs;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &size) != 0) return false;
  size = sizeof mine;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &size) != 0) return false;
  return port_of(theirs) == request.remote_port && port_of(mine) == request.local_port &&
         text_of(theirs) == request.remote_addr.substr(0, request.remote_addr.find('%'));
}

}  // namespace

Peer::Peer(const httplib::Request& request) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 65536));
  for (int fd = 3; fd < most; ++fd) {
    if (is_socket_of(fd, request)) {
      socket_ = fd;
      return;
    }
  }
}

bool Peer::gone() const {
  if (socket_ < 0) return true;
  pollfd p{socket_, POLLRDHUP, 0};
  return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

}  // namespace server
