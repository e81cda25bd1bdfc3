// SPDX-License-Identifier: MIT
#include "request_stream.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "fields.h"

namespace server {
namespace {

using std::chrono::milliseconds;

// A request that has begun and sends nothing for so long does not go on.
constexpr milliseconds kSilence{10000};
// How long a client that gets its answer early may be silent before the connection is closed on
// what it still sends.
constexpr milliseconds kLastSilence{2000};
constexpr milliseconds kWrite{10000};

thread_local RequestStream* current_stream = nullptr;

bool is_ready(int socket, short events, milliseconds patience) {
  pollfd p{socket, events, 0};
  int n = 0;
  do {
    n = poll(&p, 1, static_cast<int>(patience.count()));
  } while (n < 0 && errno == EINTR);
  return n > 0;
}

void describe(int (*name)(int, sockaddr*, socklen_t*), int socket, std::string& address,
              int& port) {
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  if (name(socket, reinterpret_cast<sockaddr*>(&own), &size) != 0) return;
  char text[INET6_ADDRSTRLEN] = "";
  if (own.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(own);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    port = ntohs(v4.sin_port);
  } else if (own.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(own);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof text);
    port = ntohs(v6.sin6_port);
  }
  address = text;
}

}  // namespace

RequestStream::RequestStream(int socket, std::chrono::seconds arrival)
    : socket_(socket), arrival_(arrival) {
  current_stream = this;
}

RequestStream::~RequestStream() {
  current_stream = nullptr;
  if (!may_go_on()) drop_rest();
  ::shutdown(socket_, SHUT_RDWR);
  ::close(socket_);
}

RequestStream* RequestStream::current() {
  return current_stream;
}

bool RequestStream::begin_request(std::chrono::seconds patience) {
  if (begin_ == end_ && receive(patience) <= 0) return false;
  deadline_ = Clock::now() + arrival_;
  n_unparsed_ = 0;
  head_is_read_ = body_is_left_ = late_ = false;
  return true;
}

void RequestStream::head_is_read(const httplib::Request& request) {
  head_is_read_ = true;
  n_unparsed_ = 0;
  // Without a length the end of what these send is the end of the connection.
  const bool sends = request.method != "GET" && request.method != "HEAD";
  body_is_left_ =
      request.has_header("Transfer-Encoding") ||
      (request.has_header("Content-Length") ? request.get_header_value("Content-Length") != "0"
                                            : sends);
}

milliseconds RequestStream::left() const {
  const auto time = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
  return std::max(time, milliseconds(0));
}

// Into the empty buffer. 0: the end; less: nothing came.
ssize_t RequestStream::receive(milliseconds patience) {
  begin_ = end_ = 0;
  if (!is_ready(socket_, POLLIN, patience)) return -1;
  const ssize_t n = recv(socket_, buffer_.data(), buffer_.size(), 0);
  if (n > 0) end_ = static_cast<size_t>(n);
  return n;
}

ssize_t RequestStream::read(char* to, size_t size) {
  if (late_ || too_long()) return -1;
  if (left() == milliseconds(0)) {
    late_ = true;
    return -1;
  }
  if (begin_ == end_) {
    const ssize_t n = receive(std::min(kSilence, left()));
    late_ = n < 0;
    if (n <= 0) return n;
  }
  size = std::min(size, end_ - begin_);
  std::memcpy(to, buffer_.data() + begin_, size);
  begin_ += size;
  n_unparsed_ += size;
  return too_long() ? -1 : static_cast<ssize_t>(size);
}

// Closing a connection on bytes that nobody took resets it, and the client may lose the answer that
// it was given; so they are taken, for as long as the request might have.
void RequestStream::drop_rest() {
  ::shutdown(socket_, SHUT_WR);
  while (receive(std::min(kLastSilence, left())) > 0) {
  }
}

bool RequestStream::is_readable() const {
  return begin_ < end_ || is_ready(socket_, POLLIN, std::min(kSilence, left()));
}

// A client that closed its sending half waits for nothing.
bool RequestStream::is_writable() const {
  if (!is_ready(socket_, POLLOUT, kWrite)) return false;
  char byte = 0;
  const ssize_t n = recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

ssize_t RequestStream::write(const char* from, size_t size) {
  if (!is_writable()) return -1;
  ssize_t n = 0;
  do {
    n = send(socket_, from, size, MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  return n;
}

void RequestStream::get_remote_ip_and_port(std::string& address, int& port) const {
  describe(getpeername, socket_, address, port);
}

void RequestStream::get_local_ip_and_port(std::string& address, int& port) const {
  describe(getsockname, socket_, address, port);
}

std::string read_body(const httplib::Request& request, const httplib::ContentReader& read,
                      uint64_t most) {
  RequestStream& stream = *RequestStream::current();
  std::string out;
  bool too_long = false;
  const bool whole = read([&](const char* bytes, size_t n) {
    stream.made_progress();
    too_long = n > most - out.size();
    if (!too_long) out.append(bytes, n);
    return !too_long;
  });
  if (too_long) throw RequestError(413, "the request is too long");
  if (stream.late()) throw RequestError(408, "the request did not arrive in time");
  if (!whole) throw RequestError(400, "the body breaks off, or is not as its headers say");
  // Behind a body that does not say its length at its beginning it is uncertain what comes next.
  if (request.has_header("Content-Length")) stream.body_is_read();
  return out;
}

void check_headers_of_body(const httplib::Request& request, uint64_t most) {
  const size_t lengths = request.get_header_value_count("Content-Length");
  const size_t codings = request.get_header_value_count("Transfer-Encoding");
  if (lengths + codings > 1) {
    throw RequestError(400, "more than one header says how long the body is");
  }
  const std::string coding = request.get_header_value("Transfer-Encoding");
  if (codings != 0 && strcasecmp(coding.c_str(), "chunked") != 0) {
    throw RequestError(400, "a Transfer-Encoding other than chunked is not read");
  }
  if (lengths == 0) return;
  const std::string text = request.get_header_value("Content-Length");
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) {
    throw RequestError(400, "Content-Length is not a whole number");
  }
  uint64_t length = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), length);
  if (error != std::errc() || length > most) throw RequestError(413, "the request is too long");
}

}  // namespace server
