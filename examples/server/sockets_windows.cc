// SPDX-License-Identifier: MIT
#include "sockets.h"

/* clang-format off: the first of these comes before the others */
#include <winsock2.h>
#include <ws2tcpip.h>
/* clang-format on */

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace server {
namespace {

static_assert(sizeof(SOCKET) == sizeof(Socket) && INVALID_SOCKET == kNoSocket);

// The system's places for connections that are not accepted yet.
constexpr int kPlaces = 1024;
constexpr size_t kMostAtOnce = std::numeric_limits<int>::max();

// What has a name on every system is said by that; not every version of this one has sentences for
// sockets.
[[noreturn]] void fail(int error, const char* what) {
  if (error == WSAEADDRINUSE || error == WSAEACCES) {
    throw std::runtime_error(std::string(what) + ": the address is in use");
  }
  if (error == WSAEADDRNOTAVAIL) {
    throw std::runtime_error(std::string(what) + ": this machine has no such address");
  }
  throw std::system_error(error, std::system_category(), what);
}

void never_wait(SOCKET socket) {
  u_long yes = 1;
  ioctlsocket(socket, static_cast<long>(FIONBIO), &yes);
}

void set(SOCKET socket, int level, int option, DWORD value) {
  setsockopt(socket, level, option, reinterpret_cast<const char*>(&value), sizeof value);
}

SOCKET bound_socket(const addrinfo& address, int* error) {
  const SOCKET s = WSASocketW(address.ai_family, SOCK_STREAM, 0, nullptr, 0,
                              WSA_FLAG_OVERLAPPED | WSA_FLAG_NO_HANDLE_INHERIT);
  if (s == INVALID_SOCKET) {
    *error = WSAGetLastError();
    return s;
  }
  // Here a port of others could be taken from them, or by them; connections that have ended do not
  // hold it.
  set(s, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, 1);
  if (address.ai_family == AF_INET6) set(s, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  never_wait(s);
  if (::bind(s, address.ai_addr, static_cast<int>(address.ai_addrlen)) == 0 &&
      ::listen(s, kPlaces) == 0) {
    return s;
  }
  *error = WSAGetLastError();
  closesocket(s);
  return INVALID_SOCKET;
}

Moved moved(int n) {
  if (n >= 0) return {Moved::Why::kDone, static_cast<size_t>(n)};
  const bool nothing = WSAGetLastError() == WSAEWOULDBLOCK;
  return {nothing ? Moved::Why::kNothingNow : Moved::Why::kLost, 0};
}

}  // namespace

void start_sockets() {
  static const int status = [] {
    WSADATA data;
    return WSAStartup(MAKEWORD(2, 2), &data);
  }();
  if (status != 0) fail(status, "the system has no sockets");
}

Moved send_some(Socket socket, std::string_view text) {
  return moved(
      ::send(socket, text.data(), static_cast<int>(std::min(text.size(), kMostAtOnce)), 0));
}

Moved receive_some(Socket socket, char* to, size_t bytes) {
  return moved(::recv(socket, to, static_cast<int>(std::min(bytes, kMostAtOnce)), 0));
}

bool await_room(Socket socket, int milliseconds) {
  WSAPOLLFD p{socket, POLLOUT, 0};
  return WSAPoll(&p, 1, milliseconds) != 0;
}

// What the client still sends hides from here that it sends no more, until that was received.
bool is_gone(Socket socket) {
  WSAPOLLFD p{socket, POLLIN, 0};
  if (WSAPoll(&p, 1, 0) <= 0) return false;
  if ((p.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return true;
  char first;
  return (p.revents & POLLIN) != 0 && ::recv(socket, &first, 1, MSG_PEEK) == 0;
}

Socket listening_socket(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                 std::to_string(port).c_str(), &hints, &found);
  if (status != 0) {
    throw std::runtime_error(std::system_category().message(status));
  }
  const std::unique_ptr<addrinfo, void(WSAAPI*)(addrinfo*)> all(found, freeaddrinfo);
  SOCKET listener = INVALID_SOCKET;
  int error = 0;
  for (const addrinfo* a = found; a != nullptr && listener == INVALID_SOCKET; a = a->ai_next) {
    listener = bound_socket(*a, &error);
  }
  if (listener == INVALID_SOCKET) fail(error, "bind");
  return listener;
}

int port_of(Socket socket) {
  sockaddr_storage address{};
  int size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Accepted accept_one(Socket listener) {
  const SOCKET s = accept(listener, nullptr, nullptr);
  if (s == INVALID_SOCKET) {
    const int error = WSAGetLastError();
    return {kNoSocket, error == WSAEMFILE || error == WSAENOBUFS};
  }
  SetHandleInformation(reinterpret_cast<HANDLE>(s), HANDLE_FLAG_INHERIT, 0);
  never_wait(s);
  set(s, IPPROTO_TCP, TCP_NODELAY, 1);
  return {s, false};
}

bool is_numeric_address(const std::string& text) {
  char bytes[sizeof(in6_addr)];
  return inet_pton(AF_INET, text.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, text.c_str(), bytes) == 1;
}

size_t most_sockets() {
  return std::numeric_limits<size_t>::max();
}

void end_sending(Socket socket) {
  ::shutdown(socket, SD_SEND);
}
void end_both(Socket socket) {
  ::shutdown(socket, SD_BOTH);
}
void close_socket(Socket socket) {
  closesocket(socket);
}

}  // namespace server
