// SPDX-License-Identifier: MIT
// The HTTP library's server with three things that it leaves out: places enough for connections
// that wait to be accepted, bounds on what a request takes to arrive, and an end that does not wait
// for connections at rest. Thread rule: that of httplib::Server; stop_all() from any thread.
#pragma once

#include <httplib.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "request_stream.h"

namespace server {

class Listening : public httplib::Server {
 public:
  /// @param arrival how long a request may take to arrive.
  explicit Listening(std::chrono::seconds arrival) : arrival_(arrival) {}

  /// Once it is bound. The library asks for 5 places; what comes beyond them is dropped by the
  /// kernel and comes again after 1, 3 and 7 seconds.
  void widen_queue() { ::listen(svr_sock_, kPlaces); }

  /// stop(), and the end of every connection: one at rest would hold its thread for the whole
  /// keep-alive time.
  void stop_all() {
    const int own = local_port(svr_sock_);
    stop();
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    const int most = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 65536));
    for (int fd = 3; own > 0 && fd < most; ++fd) {
      if (local_port(fd) == own) ::shutdown(fd, SHUT_RDWR);
    }
  }

 private:
  static constexpr int kPlaces = 1024;

  // As the library does it, but a connection on which something of a request was left unread takes
  // no other request: it would be read from what was left.
  bool process_and_close_socket(socket_t socket) override {
    RequestStream stream(socket, arrival_);
    bool well = false;
    for (size_t left = keep_alive_max_count_; left > 0 && svr_sock_ != INVALID_SOCKET; --left) {
      if (!stream.begin_request(std::chrono::seconds(keep_alive_timeout_sec_))) break;
      bool closes = false;
      well = process(stream, left == 1, closes);
      if (!well || closes || !stream.may_go_on()) break;
    }
    return well;
  }

  // Later versions of the library are told the addresses, too. A template, for what a version does
  // not have is only then no error.
  template <class Stream>
  bool process(Stream& stream, bool last, bool& closes) {
    const auto setup = [&](httplib::Request& request) { stream.head_is_read(request); };
    if constexpr (requires { this->process_request(stream, last, closes, setup); }) {
      return this->process_request(stream, last, closes, setup);
    } else {
      std::string remote, local;
      int remote_port = 0, local_port = 0;
      stream.get_remote_ip_and_port(remote, remote_port);
      stream.get_local_ip_and_port(local, local_port);
      return this->process_request(stream, remote, remote_port, local, local_port, last, closes,
                                   setup);
    }
  }

  // -1 for what is no socket of an IP address.
  static int local_port(int fd) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
    if (address.ss_family == AF_INET) {
      return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
    }
    if (address.ss_family == AF_INET6) {
      return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
    }
    return -1;
  }

  const std::chrono::seconds arrival_;
};

}  // namespace server
