// SPDX-License-Identifier: MIT
#include "http_server.h"

#include <malloc.h>

#include <new>
#include <stdexcept>
#include <utility>

#include "answer_format.h"
#include "json_document.h"
#include "sse.h"

namespace server {
namespace {

// How often a thread that waits for a place, or while a prompt is read, looks whether its client is
// still there. Between two steps the thread that computes looks itself.
constexpr std::chrono::milliseconds kLook{25};
// Requests that took more of the allocator's memory than this have it given back to the system.
constexpr uint64_t kWorthTrimming = 4u << 20;

void give_back(MemoryBudget::Share& share) {
  const bool was_much = share.bytes() > kWorthTrimming;
  share.release();
#ifdef __GLIBC__
  if (was_much) malloc_trim(0);
#endif
}

}  // namespace

// An answer on its way; when nobody holds it any more, the answer is not wanted any more.
struct Delivery {
  Delivery(Scheduler& scheduler, Asked& asked, const Exchange& exchange)
      : peer(exchange),
        format(std::move(asked.format)),
        job(scheduler.submit(std::move(asked.generation), [this] { return peer.gone(); })) {}
  ~Delivery() { job->cancel(); }  // from here on nobody looks at the peer
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  const Exchange& peer;
  std::unique_ptr<AnswerFormat> format;
  const std::shared_ptr<Job> job;
};

HttpServer::HttpServer(const Engine& engine, const Settings& settings)
    : engine_(engine),
      settings_(settings),
      admission_(settings),
      budget_(settings.request_bytes()),
      scheduler_(engine, settings, metrics_) {
  add_routes();
  add_session_routes();
  add_page();
  const HttpLimits limits{settings_.connections, settings_.max_body,
                          std::chrono::seconds(settings_.receive_timeout)};
  HttpHandler& handler = *this;
  http_ = std::make_unique<HttpListener>(handler, budget_, limits);
}

HttpServer::~HttpServer() = default;

int HttpServer::bind() {
  const int port = static_cast<int>(settings_.port);
  try {
    return http_->bind(settings_.host, port);
  } catch (const std::runtime_error& e) {
    throw std::runtime_error("cannot listen on " + settings_.host + " port " +
                             std::to_string(port) + ": " + e.what());
  }
}

void HttpServer::listen() {
  http_->listen();
}
void HttpServer::stop() {
  stopping_ = true;
  http_->stop();
}

std::string HttpServer::address(int port) const {
  const bool v6 = settings_.host.find(':') != std::string::npos;
  return "http://" + (v6 ? "[" + settings_.host + "]" : settings_.host) + ":" +
         std::to_string(port);
}

// All that can be said of a request by its head.
std::optional<HttpResponse> HttpServer::judge(const HttpRequest& request) {
  try {
    const bool asks = request.method == "OPTIONS";
    const bool guarded = request.path.starts_with("/v1/") || request.path == "/metrics";
    if (asks && !admission_.named_origin(request).empty()) return preflight(request);
    if (guarded) asks ? admission_.check_site(request) : admission_.check(request);
    Parts parts;
    const Route* route = find_route(request, &parts);
    if (route == nullptr) throw RequestError(404, "there is no such page");
    if (route->at_once) {
      HttpResponse response = route->at_once();
      let_read(request, &response);
      return response;
    }
    if (request.method != "POST") return std::nullopt;
    const std::string type = request.header("content-type");
    // What a browser sends to other sites without asking them first is never of this type, whatever
    // parameters it has.
    if (!same_but_case(trimmed(std::string_view(type).substr(0, type.find(';'))),
                       "application/json")) {
      throw RequestError(415, "the body has to be of type application/json");
    }
    if (request.find("content-length") == nullptr && request.find("transfer-encoding") == nullptr) {
      throw RequestError(400, "a POST says how long its body is");
    }
    return std::nullopt;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (...) {
    HttpResponse response = failure();
    let_read(request, &response);
    return response;
  }
}

bool HttpServer::takes_body(const HttpRequest& request) const {
  return request.method == "POST";
}

void HttpServer::serve(Exchange& exchange) {
  try {
    Parts parts;
    find_route(exchange.request, &parts)->handler(exchange, parts);
  } catch (...) {
    exchange.request.body = {};
    give_back(exchange.share());
    if (exchange.is_stream()) {  // its status is out
      exchange.write(kOutOfMemoryEvent);
      exchange.end_stream();
      return;
    }
    exchange.response = failure();
  }
  if (!exchange.is_stream()) let_read(exchange.request, &exchange.response);
}

HttpResponse HttpServer::refusal(const HttpRequest& request, int status,
                                 const std::string& sentence) const {
  HttpResponse response = refused(status, error_json(status, sentence));
  let_read(request, &response);
  return response;
}

HttpResponse HttpServer::refused(int status, const json& body) const {
  HttpResponse response;
  response.status = status;
  response.type = "application/json";
  response.body = dump(body);
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

// The failure of any handler, as JSON with the status that fits.
HttpResponse HttpServer::failure() const {
  try {
    throw;
  } catch (const RequestError& e) {
    return refused(e.status(), error_json(e.status(), e.what(), e.param(), e.code()));
  } catch (const Busy& e) {
    return refused(429, error_json(429, e.what()));
  } catch (const LibraryError& e) {
    const bool theirs = e.status() == SHARPI_E_INVALID_ARGUMENT || e.status() == SHARPI_E_STATE ||
                        e.status() == SHARPI_E_UNSUPPORTED;
    const int status = theirs ? 400 : is_short_of_memory(e.status()) ? 503 : 500;
    return refused(status, error_json(status, e.what(), "", sharpi_status_name(e.status())));
  } catch (const std::bad_alloc&) {
    return refused(503, error_json(503, "memory is short"));
  } catch (const std::exception& e) {
    return refused(500, error_json(500, e.what()));
  }
}

// A page that --allow-origin names may read the answer.
void HttpServer::let_read(const HttpRequest& request, HttpResponse* response) const {
  if (settings_.allow_origin.empty()) return;
  response->headers.emplace_back("Vary", "Origin");
  const std::string origin = admission_.named_origin(request);
  if (!origin.empty()) response->headers.emplace_back("Access-Control-Allow-Origin", origin);
}

// A browser asks whether such a page may send what it wants to send.
HttpResponse HttpServer::preflight(const HttpRequest& request) const {
  admission_.check_site(request);
  HttpResponse response;
  response.status = 204;
  let_read(request, &response);
  const std::string headers = request.header("access-control-request-headers");
  response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST");
  response.headers.emplace_back("Access-Control-Allow-Headers",
                                headers.empty() ? "Authorization, Content-Type" : headers);
  response.headers.emplace_back("Access-Control-Max-Age", "600");
  if (request.find("access-control-request-private-network") != nullptr) {
    response.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  }
  return response;
}

// Waits no longer for an answer that nobody will get.
bool HttpServer::given_up(const Delivery& delivery) const {
  if (stopping_) throw RequestError(503, "the server ends");
  return delivery.peer.gone();
}

void HttpServer::answer(Exchange& exchange, JsonDocument body, Read read) {
  Asked asked = read(body.root(), engine_, settings_);
  body.clear();
  exchange.request.body = {};
  give_back(exchange.share());
  Delivery delivery(scheduler_, asked, exchange);
  Job& job = *delivery.job;
  const auto late = Clock::now() + std::chrono::seconds(settings_.queue_timeout);
  while (!job.wait_begun(kLook)) {
    if (given_up(delivery)) return;
    if (Clock::now() >= late && job.expire()) {
      metrics_.refused_late++;
      throw RequestError(
          503, "no place became free in " + std::to_string(settings_.queue_timeout) + " seconds");
    }
  }
  if (asked.stream && job.outcome().finish != Finish::kFailed) return stream(delivery, exchange);
  std::vector<Piece> pieces;
  delivery.format->begin(job.outcome());
  while (job.take(&pieces, kLook)) {
    if (given_up(delivery)) return;
    delivery.format->pieces(pieces);
  }
  const Outcome outcome = job.outcome();
  if (outcome.finish == Finish::kCancelled) return;
  if (outcome.finish == Finish::kFailed) throw RequestError(outcome.http_status, outcome.error);
  delivery.format->end(outcome);
  exchange.response.type = "application/json";
  exchange.response.body = dump(delivery.format->whole(outcome));
}

// Text that came together goes in one chunk.
void HttpServer::stream(Delivery& delivery, Exchange& exchange) {
  exchange.response.type = "text/event-stream";
  exchange.response.headers.emplace_back("Cache-Control", "no-cache");
  let_read(exchange.request, &exchange.response);
  if (!exchange.begin_stream()) return;
  Job& job = *delivery.job;
  std::vector<Piece> pieces;
  std::string out = delivery.format->begin(job.outcome());
  for (bool more = true; more; out.clear()) {
    more = job.take(&pieces, out.empty() ? kLook : std::chrono::milliseconds(0));
    if (exchange.gone()) return;
    out += more ? delivery.format->pieces(pieces) : delivery.format->end(job.outcome());
    if (!exchange.write(out)) return;
  }
  exchange.end_stream();
}

}  // namespace server
