// SPDX-License-Identifier: MIT
#include "http_listener.h"

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <new>
#include <utility>

namespace server {
namespace {

// How often deadlines are looked at while there are connections, in milliseconds.
constexpr int kSweep = 200;
// Descriptors that are not for connections: files of the model, saved sessions, the library's own.
constexpr size_t kOtherDescriptors = 64;
constexpr size_t kFewestConnections = 1024;

// Four connections for each request that may be served, where the system has descriptors for them.
size_t most_connections(size_t threads) {
  const size_t wanted = std::max(kFewestConnections, 4 * threads);
  const size_t there = std::min(most_sockets(), size_t{1} << 20);
  return std::min(wanted, std::max<size_t>(8, there - std::min(there, kOtherDescriptors)));
}

}  // namespace

HttpListener::HttpListener(HttpHandler& handler, MemoryBudget& budget, const HttpLimits& limits)
    : handler_(handler),
      budget_(budget),
      limits_(limits),
      most_connections_(most_connections(limits.threads)),
      workers_(limits.threads, [this](Connection& connection) { serve(connection); }) {}

HttpListener::~HttpListener() {
  workers_.finish();
  connections_.clear();
  if (listener_ != kNoSocket) close_socket(listener_);
}

int HttpListener::bind(const std::string& host, int port) {
  listener_ = listening_socket(host, port);
  return port_of(listener_);
}

void HttpListener::watch(Connection& connection) {
  const bool leaves = connection.state() == State::kLeaves;
  poller_.change(connection.socket(), leaves ? Poller::For::kWriting : Poller::For::kReading,
                 &connection);
}

void HttpListener::stop() {
  stopping_ = true;
  poller_.wake();
}

// The listening socket has no connection as its mark.
void HttpListener::listen() {
  poller_.add(listener_, Poller::For::kReading, nullptr);
  while (!stopping_) await_events(connections_.empty() && accepts_ ? -1 : kSweep);
  end_all();
}

void HttpListener::await_events(int patience) {
  bool accepts = false;
  for (const Poller::Event& event : poller_.wait(patience)) {
    if (event.mark == nullptr) {
      accepts = true;
    } else {
      handle(*static_cast<Connection*>(event.mark), event.writable);
    }
  }
  take_back();
  sweep();
  if (accepts) accept_all();  // last: it drops connections
  drop_closed();
}

void HttpListener::end_all() {
  for (Connection& connection : connections_) end_both(connection.socket());
  workers_.finish();
  returned_ = nullptr;
  connections_.clear();
  drop_closed();
  poller_.remove(listener_);
  close_socket(std::exchange(listener_, kNoSocket));
}

void HttpListener::accept_all() {
  for (;;) {
    const auto [socket, full] = accept_one(listener_);
    if (socket == kNoSocket) {
      if (full && make_room()) continue;
      accepts_ = !full;
      if (full) poller_.change(listener_, Poller::For::kNothing, nullptr);  // until the next sweep
      return;
    }
    if (connections_.size() >= most_connections_ && !make_room()) {
      close_socket(socket);
      continue;
    }
    try {
      connections_.emplace_back(socket, limits_.arrival);
      connections_.back().self = std::prev(connections_.end());
    } catch (const std::bad_alloc&) {
      close_socket(socket);
      continue;
    }
    try {
      poller_.add(socket, Poller::For::kReading, &connections_.back());
    } catch (const std::bad_alloc&) {
      connections_.pop_back();
    }
  }
}

// Closes the connection that is missed least: one at rest, then one whose request arrives, then one
// that takes its answer; of these the one that was that for the longest time. False: all are
// served.
bool HttpListener::make_room() {
  const auto rank = [](const Connection& c) {
    return c.state() == State::kDrains    ? 0
           : c.state() == State::kRests   ? 1
           : c.state() == State::kArrives ? 2
                                          : 3;
  };
  Connection* least = nullptr;
  for (Connection& c : connections_) {
    if (c.state() == State::kIsServed) continue;
    if (least == nullptr || rank(c) < rank(*least) ||
        (rank(c) == rank(*least) && c.changed_at() < least->changed_at())) {
      least = &c;
    }
  }
  if (least == nullptr) return false;
  close(*least);
  drop_closed();  // its descriptor is needed
  return true;
}

// Where memory is short, the connection gets what needs none, and ends.
void HttpListener::guarded(Connection& connection, void (HttpListener::*step)(Connection&)) {
  try {
    (this->*step)(connection);
  } catch (const std::exception&) {
    connection.put_out_of_memory();
    end_by_answer(connection);
  }
}

// Closing it at once on what the client still sends would take the answer from it.
void HttpListener::end_by_answer(Connection& connection) {
  if (connection.state() == State::kIsClosed) return;
  connection.enter(State::kLeaves);
  try {
    go_on(connection);
  } catch (const std::bad_alloc&) {
    close(connection);
  }
}

void HttpListener::handle(Connection& connection, bool writable) {
  guarded(connection, writable || connection.state() == State::kLeaves ? &HttpListener::resume
                                                                       : &HttpListener::receive);
}

void HttpListener::receive(Connection& connection) {
  std::array<char, 32768> buffer;
  const auto [why, n] = receive_some(connection.socket(), buffer.data(), buffer.size());
  if (why == Moved::Why::kNothingNow) return;
  if (why == Moved::Why::kLost) return close(connection);
  if (connection.state() == State::kDrains) {
    connection.made_progress();
    return n == 0 ? close(connection) : void();
  }
  if (n == 0) {
    if (connection.state() == State::kRests || !connection.has_parser()) return close(connection);
    connection.parser().end();
    if (!connection.parser().has_line()) return close(connection);
    return refuse(connection, connection.parser().fault(), connection.parser().fault_sentence());
  }
  connection.made_progress();
  connection.input().append(buffer.data(), n);
  process(connection);
}

// Goes as far as what came reaches.
void HttpListener::process(Connection& connection) {
  std::string& input = connection.input();
  while (!input.empty() || connection.has_parser()) {
    if (connection.state() == State::kRests) {
      connection.begin_request(limits_.max_body, budget_);
    }
    HttpParser& parser = connection.parser();
    const size_t n = parser.take(input);
    input.erase(0, n);
    if (parser.fault() != 0) return refuse(connection, parser.fault(), parser.fault_sentence());
    if (!parser.head_is_whole()) return;
    if (!connection.judged) {
      if (!judge(connection)) return;
    } else if (parser.is_whole()) {
      return hand_over(connection);
    } else if (n == 0) {
      return;
    }
  }
}

// By the head of the request. False: this connection has nothing more to be processed for now.
bool HttpListener::judge(Connection& connection) {
  connection.judged = true;
  HttpParser& parser = connection.parser();
  const HttpRequest& request = parser.request();
  const bool has_body = parser.has_body();
  const std::optional<HttpResponse> response = handler_.judge(request);
  const bool takes_body = !response && has_body && handler_.takes_body(request);
  connection.closes = !request.keeps_alive || parser.is_chunked() || (has_body && !takes_body);
  if (response) {
    answer(connection, *response);
    return connection.state() == State::kRests;
  }
  if (!takes_body) {
    hand_over(connection);
    return false;
  }
  parser.read_body();
  if (parser.wants_continue()) {
    connection.put_interim("HTTP/1.1 100 Continue\r\n\r\n");
    connection.flush();
  }
  return true;
}

void HttpListener::refuse(Connection& connection, int status, const std::string& sentence) {
  connection.closes = true;
  answer(connection, handler_.refusal(connection.parser().request(), status, sentence));
}

void HttpListener::answer(Connection& connection, const HttpResponse& response) {
  const HttpRequest& request = connection.parser().request();
  connection.put(response, request.method == "HEAD", request.is_http_1_0);
  handler_.answered(response.status);
  connection.enter(State::kLeaves);
  go_on(connection);
}

// Writes on; when all is written, waits for the next request, or for the end.
void HttpListener::go_on(Connection& connection) {
  if (!connection.flush()) return close(connection);
  if (connection.has_output()) return watch(connection);
  connection.forget_request();
  if (connection.closes) {
    end_sending(connection.socket());
    connection.input() = {};
    connection.enter(State::kDrains);
    return watch(connection);
  }
  connection.enter(State::kRests);
  watch(connection);
}

// The same, and takes what the client has sent meanwhile.
void HttpListener::resume(Connection& connection) {
  go_on(connection);
  if (connection.state() == State::kRests && !connection.input().empty()) process(connection);
}

// It is dropped when nobody looks at it any more.
void HttpListener::close(Connection& connection) {
  if (connection.state() == State::kIsClosed) return;
  poller_.remove(connection.socket());
  connection.enter(State::kIsClosed);
  closed_.splice(closed_.end(), connections_, connection.self);
}

void HttpListener::drop_closed() {
  closed_.clear();
}

// Those whose threads are done with them.
void HttpListener::take_back() {
  Connection* connection = nullptr;
  {
    const std::lock_guard lock(mutex_);
    connection = std::exchange(returned_, nullptr);
  }
  while (connection != nullptr) {
    Connection& c = *std::exchange(connection, connection->next);
    c.enter(State::kLeaves);
    guarded(c, &HttpListener::rejoin);
  }
}

void HttpListener::rejoin(Connection& connection) {
  poller_.add(connection.socket(), Poller::For::kNothing, &connection);
  resume(connection);
}

// Ends what took too long.
void HttpListener::sweep() {
  const Clock::time_point now = Clock::now();
  if (now < swept_at_ + std::chrono::milliseconds(kSweep)) return;
  swept_at_ = now;
  for (auto next = connections_.begin(); next != connections_.end();) {
    Connection& connection = *next++;
    if (now >= connection.deadline()) guarded(connection, &HttpListener::end_late);
  }
  if (accepts_) return;
  accepts_ = true;
  poller_.change(listener_, Poller::For::kReading, nullptr);
}

// This thread may itself have been late: what came meanwhile, or can leave now, counts first.
void HttpListener::end_late(Connection& connection) {
  handle(connection, false);
  if (Clock::now() < connection.deadline()) return;
  if (connection.state() != State::kArrives || !connection.parser().has_line()) {
    return close(connection);
  }
  refuse(connection, 408, "the request did not arrive in time");
}

void HttpListener::hand_over(Connection& connection) {
  if (workers_.busy() >= std::max(limits_.threads, most_connections_ / 2)) {
    return refuse(connection, 503, "too many requests wait for a thread");
  }
  poller_.remove(connection.socket());
  connection.enter(State::kIsServed);
  workers_.add(connection);
}

// On a thread of the workers'.
void HttpListener::serve(Connection& connection) {
  bool whole = true;
  Exchange exchange(connection);
  try {
    if (!stopping_) handler_.serve(exchange);
    handler_.answered(exchange.response.status);
    whole = !exchange.is_stream() || exchange.is_whole_stream();
    if (!exchange.is_stream()) {
      connection.put(exchange.response, exchange.request.method == "HEAD",
                     exchange.request.is_http_1_0);
    }
  } catch (const std::exception&) {
    handler_.answered(503);
    whole = !exchange.is_stream();
    if (whole) connection.put_out_of_memory();
  }
  if (!whole) end_both(connection.socket());
  connection.forget_request();
  const std::lock_guard lock(mutex_);
  connection.next = returned_;
  returned_ = &connection;
  poller_.wake();
}

}  // namespace server
