// SPDX-License-Identifier: MIT
// Sockets of the server as the system has them: sockets_posix.cc and sockets_windows.cc. No
// function raises a signal, and none waits but await_room(). Thread rule: any thread, one at a time
// for a socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace server {

#ifdef _WIN32
using Socket = uintptr_t;
inline constexpr Socket kNoSocket = ~Socket{0};
#else
using Socket = int;
inline constexpr Socket kNoSocket = -1;
#endif

/// Bytes that were sent or received, or why there were none.
struct Moved {
  enum class Why { kDone, kNothingNow, kLost };
  Why why;
  size_t bytes;  // received 0 with kDone: the other side sends no more
};
Moved send_some(Socket socket, std::string_view text);
Moved receive_some(Socket socket, char* to, size_t bytes);
/// Waits until something can be sent, or the other side is gone; false: neither in that time.
bool await_room(Socket socket, int milliseconds);
/// Whether a client closed its connection, or its sending half: nobody waits for an answer.
bool is_gone(Socket socket);

/// A socket that takes connections at an address, and shares it with nobody; host empty: every
/// address. Throws std::system_error, or another std::runtime_error with a sentence.
Socket listening_socket(const std::string& host, int port);
int port_of(Socket socket);
struct Accepted {
  Socket socket;  // kNoSocket: none waits now, or the system is full
  bool full;      // it has no sockets or no memory left
};
Accepted accept_one(Socket listener);
/// Whether it is an address of IPv4 or IPv6 in numbers.
bool is_numeric_address(const std::string& text);
/// How many sockets the process may have, or SIZE_MAX where nothing bounds them.
size_t most_sockets();

void end_sending(Socket socket);
void end_both(Socket socket);
void close_socket(Socket socket);

#ifdef _WIN32
/// Before the first socket, by whoever may be the first. Throws std::system_error.
void start_sockets();
#endif

}  // namespace server
