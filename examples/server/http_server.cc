// SPDX-License-Identifier: MIT
#include "http_server.h"

#include <httplib.h>

#include <cstring>

#include "answer_format.h"
#include "connections.h"
#include "listening.h"
#include "page.h"
#include "peer.h"
#include "request_stream.h"
#include "sse.h"

namespace server {
namespace {

// How often a thread that waits for a place, or while a prompt is read, looks whether its client is
// still there. Between two steps the thread that computes looks itself.
constexpr std::chrono::milliseconds kLook{25};

bool same_text(const std::string& a, const std::string& b) {
  // Takes as long for a nearly right key as for a wrong one.
  unsigned difference = static_cast<unsigned>(a.size() ^ b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned char>(a[i]) ^
        static_cast<unsigned>(static_cast<unsigned char>(b[b.empty() ? 0 : i % b.size()]));
  }
  return difference == 0;
}

// Whether a Host header names this machine by an address, or a name, that others cannot give
// theirs.
bool is_loopback(const std::string& host) {
  const size_t end = host.starts_with('[') ? host.find(']') + 1 : host.find(':');
  const std::string name = host.substr(0, end);
  return name == "localhost" || name == "::1" || name == "[::1]" || name.empty() ||
         (name.starts_with("127.") && name.find_first_not_of("0123456789.") == std::string::npos);
}

void send(httplib::Response& response, const json& body, int status = 200) {
  response.status = status;
  response.set_content(dump(body), "application/json");
}

}  // namespace

// An answer on its way; when nobody holds it any more, the answer is not wanted any more.
struct Delivery {
  Delivery(Scheduler& scheduler, Asked& asked, const httplib::Request& request)
      : peer(request),
        format(std::move(asked.format)),
        job(scheduler.submit(std::move(asked.generation), [this] { return peer.gone(); })) {}
  ~Delivery() { job->cancel(); }  // from here on nobody looks at the peer
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  const Peer peer;
  std::unique_ptr<AnswerFormat> format;
  const std::shared_ptr<Job> job;
  bool begun = false;
};

HttpServer::HttpServer(const Engine& engine, const Settings& settings)
    : engine_(engine),
      settings_(settings),
      scheduler_(engine, settings, metrics_),
      http_(std::make_unique<Listening>(std::chrono::seconds(settings.receive_timeout))) {
  http_->new_task_queue = [this] { return new Connections(settings_.connections); };
  http_->set_keep_alive_max_count(1000);
  http_->set_keep_alive_timeout(5);
  http_->set_read_timeout(10);
  http_->set_write_timeout(10);
  http_->set_tcp_nodelay(true);
  http_->set_logger(
      [this](const auto&, const auto& response) { metrics_.count_response(response.status); });
  set_limits();
  add_routes();
  add_session_routes();
  add_page();
  add_rest();
}

HttpServer::~HttpServer() = default;

// What is refused before a body is read, and connections that end with the answer.
void HttpServer::set_limits() {
  http_->set_pre_routing_handler([this](const auto& request, auto& response) {
    return admits(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                     : httplib::Server::HandlerResponse::Handled;
  });
  http_->set_expect_100_continue_handler([this](const auto& request, auto& response) {
    return admits(request, response) ? 100 : response.status;
  });
  http_->set_post_routing_handler([](const auto&, auto& response) {
    if (RequestStream::current()->may_go_on()) return;
    response.headers.erase("Keep-Alive");
    response.headers.erase("Connection");
    response.set_header("Connection", "close");
  });
  http_->set_error_handler([](const httplib::Request&, httplib::Response& response) {
    if (!response.body.empty()) return;
    const RequestStream& stream = *RequestStream::current();
    if (stream.late()) response.status = 408;
    if (stream.too_long()) response.status = 431;
    const std::string sentence = response.status == 404   ? "there is no such page"
                                 : response.status == 408 ? "the request did not arrive in time"
                                 : response.status == 431
                                     ? "the headers are too long"
                                     : "HTTP status " + std::to_string(response.status);
    send(response, error_json(response.status, sentence), response.status);
  });
}

int HttpServer::bind() {
  const int port = static_cast<int>(settings_.port);
  const int bound = port == 0 ? http_->bind_to_any_port(settings_.host)
                    : http_->bind_to_port(settings_.host, port) ? port
                                                                : -1;
  if (bound <= 0) {
    throw std::runtime_error("cannot listen on " + settings_.host + " port " +
                             std::to_string(port) + ": " + std::strerror(errno));
  }
  http_->widen_queue();
  return bound;
}

void HttpServer::listen() {
  http_->listen_after_bind();
}
void HttpServer::stop() {
  stopping_ = true;
  http_->stop_all();
}

// Waits no longer for an answer that nobody will get.
bool HttpServer::given_up(const Delivery& delivery) const {
  if (stopping_) throw RequestError(503, "the server ends");
  return delivery.peer.gone();
}

std::string HttpServer::address(int port) const {
  const bool v6 = settings_.host.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + settings_.host + "]" : settings_.host) + ":" +
         std::to_string(port);
}

// All that can be said of a request by its head.
void HttpServer::admit(const httplib::Request& request) const {
  if (request.path.starts_with("/v1/") || request.path == "/metrics") guard(request);
  if (request.method == "PRI") throw RequestError(405, "HTTP/2 is not spoken");
  check_headers_of_body(request, settings_.max_body);
}

// False: it is refused.
bool HttpServer::admits(const httplib::Request& request, httplib::Response& response) const {
  try {
    admit(request);
    return true;
  } catch (...) {
    refuse_failure(response);
    return false;
  }
}

// The key, and pages of other sites that a browser sends here: they say so in Origin, or their name
// was made to point to this machine and stands in Host.
void HttpServer::guard(const httplib::Request& request) const {
  const std::string origin = request.get_header_value("Origin");
  if (!origin.empty()) {  // "null" is what a page says that hides where it is from
    const size_t host = origin.find("://");
    if (host == std::string::npos || origin.substr(host + 3) != request.get_header_value("Host")) {
      throw RequestError(403, "requests from pages of other sites are not served");
    }
  }
  if (settings_.api_key.empty()) {
    const std::string host = request.get_header_value("Host");
    if (is_loopback(settings_.host) && !is_loopback(host) && host != settings_.host) {
      throw RequestError(403, "without an API key only this machine's own names are served");
    }
    return;
  }
  const std::string given = request.get_header_value("Authorization");
  if (!same_text(given, "Bearer " + settings_.api_key)) {
    throw RequestError(401, "the API key is missing or wrong", "", "invalid_api_key");
  }
}

void HttpServer::refuse(httplib::Response& response, int status, const json& body) const {
  if (status == 429 || status == 503) response.set_header("Retry-After", "1");
  if (status == 401) response.set_header("WWW-Authenticate", "Bearer");
  send(response, body, status);
}

// Failures of any handler become JSON with the status that fits.
void HttpServer::refuse_failure(httplib::Response& response) const {
  try {
    throw;
  } catch (const RequestError& e) {
    refuse(response, e.status(), error_json(e.status(), e.what(), e.param(), e.code()));
  } catch (const Busy& e) {
    refuse(response, 429, error_json(429, e.what()));
  } catch (const LibraryError& e) {
    const bool theirs = e.status() == SHARPI_E_INVALID_ARGUMENT || e.status() == SHARPI_E_STATE ||
                        e.status() == SHARPI_E_UNSUPPORTED;
    refuse(response, theirs ? 400 : 500,
           error_json(theirs ? 400 : 500, e.what(), "", sharpi_status_name(e.status())));
  } catch (const std::exception& e) {
    refuse(response, 500, error_json(500, e.what()));
  }
}

void HttpServer::answer(const httplib::Request& request, httplib::Response& response, json body,
                        Read read) {
  Asked asked = read(std::exchange(body, {}), engine_, settings_);
  auto delivery = std::make_shared<Delivery>(scheduler_, asked, request);
  Job& job = *delivery->job;
  const auto late = Clock::now() + std::chrono::seconds(settings_.queue_timeout);
  while (!job.wait_begun(kLook)) {
    if (given_up(*delivery)) return;
    if (Clock::now() >= late && job.expire()) {
      metrics_.refused_late++;
      throw RequestError(
          503, "no place became free in " + std::to_string(settings_.queue_timeout) + " seconds");
    }
  }
  std::vector<Piece> pieces;
  if (asked.stream && job.outcome().finish != Finish::kFailed) {
    stream(delivery, response);
    return;
  }
  delivery->format->begin(job.outcome());
  while (job.take(&pieces, kLook)) {
    if (given_up(*delivery)) return;
    delivery->format->pieces(pieces);
  }
  const Outcome outcome = job.outcome();
  if (outcome.finish == Finish::kCancelled) return;
  if (outcome.finish == Finish::kFailed) throw RequestError(outcome.http_status, outcome.error);
  delivery->format->end(outcome);
  send(response, delivery->format->whole(outcome));
}

void HttpServer::stream(std::shared_ptr<Delivery> delivery, httplib::Response& response) {
  response.set_header("Cache-Control", "no-cache");
  response.set_chunked_content_provider(
      "text/event-stream", [delivery](size_t, httplib::DataSink& sink) {
        std::string out;
        std::vector<Piece> pieces;
        Job& job = *delivery->job;
        if (!delivery->begun) out = delivery->format->begin(job.outcome());
        delivery->begun = true;
        const bool more = job.take(&pieces, out.empty() ? kLook : std::chrono::milliseconds(0));
        if (delivery->peer.gone()) {
          job.cancel();
          return false;
        }
        out += more ? delivery->format->pieces(pieces) : delivery->format->end(job.outcome());
        if (!out.empty() && !sink.write(out.data(), out.size())) {
          job.cancel();
          return false;
        }
        if (!more) sink.done();
        return true;
      });
}

}  // namespace server
