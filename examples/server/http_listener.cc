// SPDX-License-Identifier: MIT
#include "http_listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <memory>
#include <new>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace server {
namespace {

// The kernel's places for connections that are not accepted yet.
constexpr int kPlaces = 1024;
// How often deadlines are looked at while there are connections, in milliseconds.
constexpr int kSweep = 200;
// Descriptors that are not for connections: files of the model, saved sessions, the library's own.
constexpr size_t kOtherDescriptors = 64;
constexpr size_t kFewestConnections = 1024;

// Four connections for each request that may be served, where the system has descriptors for them.
size_t most_connections(size_t threads) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const size_t wanted = std::max(kFewestConnections, 4 * threads);
  const size_t there = static_cast<size_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
  return std::min(wanted, std::max<size_t>(8, there - std::min(there, kOtherDescriptors)));
}

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

int bound_socket(const addrinfo& address) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  const int yes = 1, no = 0;
  // A port whose connections have ended can be had again at once; one that is taken cannot.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (address.ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
  if (::bind(fd, address.ai_addr, address.ai_addrlen) == 0 && ::listen(fd, kPlaces) == 0) return fd;
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

int port_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

HttpListener::HttpListener(HttpHandler& handler, MemoryBudget& budget, const HttpLimits& limits)
    : handler_(handler),
      budget_(budget),
      limits_(limits),
      most_connections_(most_connections(limits.threads)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      workers_(limits.threads, [this](Connection& connection) { serve(connection); }) {
  if (epoll_ < 0 || wake_ < 0) fail("the system has no descriptors left");
}

HttpListener::~HttpListener() {
  workers_.finish();
  connections_.clear();
  for (const int fd : {listener_, epoll_, wake_}) {
    if (fd >= 0) ::close(fd);
  }
}

int HttpListener::bind(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.empty() ? nullptr : host.c_str(),
                                 std::to_string(port).c_str(), &hints, &found);
  if (status != 0) throw std::runtime_error(gai_strerror(status));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, freeaddrinfo);
  for (const addrinfo* a = found; a != nullptr && listener_ < 0; a = a->ai_next) {
    listener_ = bound_socket(*a);
  }
  if (listener_ < 0) fail("bind");
  return port_of(listener_);
}

void HttpListener::watch(int socket, uint32_t events, Connection* connection, int operation) const {
  epoll_event event{};
  event.events = events;
  event.data.ptr = connection;
  if (epoll_ctl(epoll_, operation, socket, &event) != 0 && operation != EPOLL_CTL_DEL) {
    throw std::bad_alloc();
  }
}

void HttpListener::watch(Connection& connection) const {
  watch(connection.socket(), connection.state() == State::kLeaves ? EPOLLOUT : EPOLLIN, &connection,
        EPOLL_CTL_MOD);
}

void HttpListener::stop() {
  stopping_ = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_, &one, sizeof one);
}

// The listening socket has no connection, and what wakes has this listener, as their mark.
void HttpListener::listen() {
  epoll_event wakes{};
  wakes.events = EPOLLIN;
  wakes.data.ptr = this;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &wakes) != 0) fail("epoll");
  watch(listener_, EPOLLIN, nullptr, EPOLL_CTL_ADD);
  while (!stopping_) await_events(connections_.empty() && accepts_ ? -1 : kSweep);
  end_all();
}

void HttpListener::await_events(int patience) {
  std::array<epoll_event, 64> events;
  const int n = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), patience);
  bool accepts = false;
  for (int i = 0; i < n; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.ptr == nullptr) {
      accepts = true;
    } else if (event.data.ptr == this) {
      uint64_t times = 0;
      [[maybe_unused]] const ssize_t n_read = ::read(wake_, &times, sizeof times);
    } else {
      handle(*static_cast<Connection*>(event.data.ptr), event.events);
    }
  }
  take_back();
  sweep();
  if (accepts) accept_all();  // last: it drops connections
  drop_closed();
}

void HttpListener::end_all() {
  for (Connection& connection : connections_) ::shutdown(connection.socket(), SHUT_RDWR);
  workers_.finish();
  returned_ = nullptr;
  connections_.clear();
  drop_closed();
  ::close(std::exchange(listener_, -1));
}

void HttpListener::accept_all() {
  for (;;) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      const bool full = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      if (full && make_room()) continue;
      accepts_ = !full;
      if (full) watch(listener_, 0, nullptr, EPOLL_CTL_MOD);  // until the next sweep
      return;
    }
    if (connections_.size() >= most_connections_ && !make_room()) {
      ::close(fd);
      continue;
    }
    const int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    try {
      connections_.emplace_back(fd, limits_.arrival);
      connections_.back().self = std::prev(connections_.end());
    } catch (const std::bad_alloc&) {
      ::close(fd);
      continue;
    }
    try {
      watch(fd, EPOLLIN, &connections_.back(), EPOLL_CTL_ADD);
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

void HttpListener::handle(Connection& connection, uint32_t events) {
  guarded(connection, (events & EPOLLOUT) != 0 || connection.state() == State::kLeaves
                          ? &HttpListener::resume
                          : &HttpListener::receive);
}

void HttpListener::receive(Connection& connection) {
  std::array<char, 32768> buffer;
  const ssize_t n = recv(connection.socket(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (n < 0) return close(connection);
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
  connection.input().append(buffer.data(), static_cast<size_t>(n));
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
    ::shutdown(connection.socket(), SHUT_WR);
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
  watch(connection.socket(), 0, nullptr, EPOLL_CTL_DEL);
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
  watch(connection.socket(), 0, &connection, EPOLL_CTL_ADD);
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
  watch(listener_, EPOLLIN, nullptr, EPOLL_CTL_MOD);
}

void HttpListener::end_late(Connection& connection) {
  if (connection.state() != State::kArrives || !connection.parser().has_line()) {
    return close(connection);
  }
  refuse(connection, 408, "the request did not arrive in time");
}

void HttpListener::hand_over(Connection& connection) {
  if (workers_.busy() >= std::max(limits_.threads, most_connections_ / 2)) {
    return refuse(connection, 503, "too many requests wait for a thread");
  }
  watch(connection.socket(), 0, nullptr, EPOLL_CTL_DEL);
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
  if (!whole) ::shutdown(connection.socket(), SHUT_RDWR);
  connection.forget_request();
  const std::lock_guard lock(mutex_);
  connection.next = returned_;
  returned_ = &connection;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_, &one, sizeof one);
}

}  // namespace server
