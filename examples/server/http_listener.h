// SPDX-License-Identifier: MIT
// Takes connections and the requests that arrive over them: one thread waits for all of them
// together, so that a slow client holds nothing but its connection. Whole requests go to threads
// that may wait; what can be said at once is said by the one thread.
// Thread rule: bind() and listen() from one thread; stop() from any.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <string>

#include "connection.h"
#include "exchange.h"
#include "memory_budget.h"
#include "poller.h"
#include "workers.h"

namespace server {

/// What answers the requests of a listener.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  /// By its head: the answer, or nothing where it is to be served. May not wait.
  virtual std::optional<HttpResponse> judge(const HttpRequest& request) = 0;
  /// Whether a body that a request has is read before it is served.
  virtual bool takes_body(const HttpRequest& request) const = 0;
  /// Serves a whole request; on a thread that may wait. What it throws is std::bad_alloc.
  virtual void serve(Exchange& exchange) = 0;
  /// The answer to a request that could not be read.
  virtual HttpResponse refusal(const HttpRequest& request, int status,
                               const std::string& sentence) const = 0;
  /// An answer of that status is on its way.
  virtual void answered(int status) noexcept = 0;
};

struct HttpLimits {
  size_t threads;     // requests that are served at once
  uint64_t max_body;  // of one request, unpacked
  std::chrono::seconds arrival;
};

class HttpListener {
 public:
  HttpListener(HttpHandler& handler, MemoryBudget& budget, const HttpLimits& limits);
  ~HttpListener();
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;

  /// Takes the address, and shares it with nobody. Throws std::system_error.
  /// @return the port.
  int bind(const std::string& host, int port);
  /// Serves until stop(); then all connections are closed.
  void listen();
  void stop();

 private:
  using Clock = Connection::Clock;
  using State = Connection::State;
  void watch(Connection& connection);
  void await_events(int patience);
  void accept_all();
  bool make_room();
  void handle(Connection& connection, bool writable);
  void receive(Connection& connection);
  void process(Connection& connection);
  bool judge(Connection& connection);
  void refuse(Connection& connection, int status, const std::string& sentence);
  void answer(Connection& connection, const HttpResponse& response);
  void hand_over(Connection& connection);
  void serve(Connection& connection);
  void take_back();
  void rejoin(Connection& connection);
  void go_on(Connection& connection);
  void resume(Connection& connection);
  void close(Connection& connection);
  void sweep();
  void end_late(Connection& connection);
  void end_by_answer(Connection& connection);
  void guarded(Connection& connection, void (HttpListener::*step)(Connection&));
  void drop_closed();
  void end_all();

  HttpHandler& handler_;
  MemoryBudget& budget_;
  const HttpLimits limits_;
  const size_t most_connections_;
  Poller poller_;
  Socket listener_ = kNoSocket;
  bool accepts_ = true;
  std::atomic<bool> stopping_{false};
  std::list<Connection> connections_, closed_;
  Clock::time_point swept_at_ = Clock::now();
  std::mutex mutex_;
  Connection* returned_ = nullptr;  // from their threads
  Workers workers_;                 // last: its threads use all of the above
};

}  // namespace server
