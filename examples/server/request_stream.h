// SPDX-License-Identifier: MIT
// A connection as the HTTP library reads requests from it, with what the library leaves open: how
// long a request may take to arrive in all, how much of one may lie between two of its parts, and
// what becomes of a body that was not read.
// Thread rule: the thread that serves the connection.
#pragma once

#include <httplib.h>

#include <array>
#include <chrono>
#include <string>

namespace server {

class RequestStream : public httplib::Stream {
 public:
  /// @param arrival how long a request may take from its first byte to its last.
  RequestStream(int socket, std::chrono::seconds arrival);
  /// Says the end of the connection, and closes it.
  ~RequestStream() override;
  RequestStream(const RequestStream&) = delete;
  RequestStream& operator=(const RequestStream&) = delete;
  /// That of the connection which this thread serves; null where it serves none.
  static RequestStream* current();

  /// Waits for the first byte of a request. False: none came for so long, or the end did.
  bool begin_request(std::chrono::seconds patience);
  /// The head of the request is read; its body is not.
  void head_is_read(const httplib::Request& request);
  /// A part of the body was taken.
  void made_progress() { n_unparsed_ = 0; }
  /// All of the body was taken, and nothing behind it.
  void body_is_read() { body_is_left_ = false; }
  /// Another request can follow: nothing of this one is left to be taken for it.
  bool may_go_on() const { return head_is_read_ && !body_is_left_; }
  /// What stopped the reading: the request took too long, or a line of it has no end.
  bool late() const { return late_; }
  bool too_long() const { return n_unparsed_ > kMostUnparsed; }

  bool is_readable() const override;
  bool is_writable() const override;
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& address, int& port) const override;
  void get_local_ip_and_port(std::string& address, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;
  // Of a head, or between two parts of a body that the library hands on.
  static constexpr size_t kMostUnparsed = 64 << 10;
  ssize_t receive(std::chrono::milliseconds patience);
  std::chrono::milliseconds left() const;
  void drop_rest();

  const int socket_;
  const std::chrono::seconds arrival_;
  Clock::time_point deadline_;
  std::array<char, 16384> buffer_;
  size_t begin_ = 0, end_ = 0;  // what is in the buffer and not read yet
  size_t n_unparsed_ = 0;
  bool head_is_read_ = false, body_is_left_ = false, late_ = false;
};

/// The body of a request whose head was read, at most so long. Throws RequestError.
std::string read_body(const httplib::Request& request, const httplib::ContentReader& read,
                      uint64_t most);
/// Refuses heads that do not say clearly where their body ends, and bodies that say that they are
/// longer. Throws RequestError.
void check_headers_of_body(const httplib::Request& request, uint64_t most);

}  // namespace server
