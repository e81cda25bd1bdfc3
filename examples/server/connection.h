// SPDX-License-Identifier: MIT
// One connection: its socket, the request that arrives over it, and what is to be written of an
// answer. Nothing here waits.
// Thread rule: one thread at a time, which is that of the listener, or the one that serves it.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <string>
#include <string_view>

#include "http_message.h"
#include "http_parser.h"
#include "sockets.h"

namespace server {

class Connection {
 public:
  enum class State {
    kRests,     // no request has begun
    kArrives,   // one has
    kIsServed,  // it is whole, and a thread has it, or it waits for one
    kLeaves,    // the answer is on its way
    kDrains,    // it was the last one; what the client still sends is dropped
    kIsClosed
  };
  using Clock = std::chrono::steady_clock;

  /// Takes the socket over.
  Connection(Socket socket, std::chrono::seconds arrival) : socket_(socket), arrival_(arrival) {}
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Socket socket() const { return socket_; }
  State state() const { return state_; }
  void enter(State state);
  /// When something has to have happened.
  Clock::time_point deadline() const;
  Clock::time_point changed_at() const { return changed_at_; }

  /// What came and was not taken yet.
  std::string& input() { return input_; }
  /// Something arrived, or was taken by the other side.
  void made_progress() { progress_at_ = Clock::now(); }
  HttpParser& parser() { return *parser_; }
  bool has_parser() const { return parser_ != nullptr; }
  void begin_request(uint64_t most_body, MemoryBudget& budget);
  void forget_request() { parser_.reset(); }
  bool judged = false;
  /// The connection ends with the answer.
  bool closes = false;

  /// Puts an answer behind what is still to be written.
  void put(const HttpResponse& response, bool without_body, bool is_http_1_0);
  void put_interim(std::string_view text) { output_ += text; }
  /// An answer that needs no memory; the connection ends with it.
  void put_out_of_memory();
  /// Writes what can be written. False: the other side is gone.
  bool flush();
  bool has_output() const { return written_ < output_.size() || !fixed_.empty(); }

  std::list<Connection>::iterator self;  // in the listener's list
  Connection* next = nullptr;  // in the list of those that wait for a thread, or come back

 private:
  const Socket socket_;
  const std::chrono::seconds arrival_;
  State state_ = State::kRests;
  Clock::time_point changed_at_ = Clock::now(), progress_at_ = changed_at_, begun_at_ = changed_at_;
  std::string input_, output_;
  size_t written_ = 0;
  std::string_view fixed_;  // behind the output
  std::unique_ptr<HttpParser> parser_;
};

}  // namespace server
