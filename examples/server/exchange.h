// SPDX-License-Identifier: MIT
// A whole request, and the answer that a thread of the server's makes of it: one that is written
// when it is complete, or a stream. Thread rule: the thread that serves the connection; gone() by
// any while that serves it.
#pragma once

#include <atomic>
#include <string>
#include <string_view>

#include "connection.h"

namespace server {

class Exchange {
 public:
  explicit Exchange(Connection& connection)
      : connection_(connection), request(connection.parser().request()) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

 private:
  Connection& connection_;

 public:
  HttpRequest& request;
  HttpResponse response;
  /// What the request has of the budget of all.
  MemoryBudget::Share& share() { return connection_.parser().share(); }
  /// The client closed its connection, or its sending half.
  bool gone() const { return is_gone(connection_.socket()); }

  /// Writes the head of the response; from here on write() says what it consists of.
  /// False: the client is gone.
  bool begin_stream();
  /// Waits while the client does not take it. False: it is gone, or takes nothing.
  bool write(std::string_view text);
  /// The stream is complete. One that never was ends the connection.
  bool end_stream();
  bool is_stream() const { return is_stream_; }
  bool is_whole_stream() const { return is_ended_; }

 private:
  bool send_all(std::string_view text);

  bool is_stream_ = false, is_ended_ = false;
};

}  // namespace server
