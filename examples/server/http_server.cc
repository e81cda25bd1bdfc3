// SPDX-License-Identifier: MIT
#include "http_server.h"

#include <malloc.h>

#include <algorithm>
#include <new>
#include <stdexcept>
#include <utility>

#include "answer_format.h"
#include "delivery.h"
#include "json_document.h"
#include "messages_format.h"
#include "sse.h"

namespace server {
namespace {

// How often a thread that waits for a place, or while a prompt is read, looks whether its client is
// still there. Between two steps the thread that computes looks itself.
constexpr std::chrono::milliseconds kLook{25};
// A stream that has said nothing for so long, as a prompt is read, says how far it is: who waits
// sees that it goes on, and proxies keep the connection.
constexpr std::chrono::milliseconds kSilence{1000};
// Requests that took more of the allocator's memory than this have it given back to the system.
constexpr uint64_t kWorthTrimming = 4u << 20;

void give_back(MemoryBudget::Share& share) {
  [[maybe_unused]] const bool was_much = share.bytes() > kWorthTrimming;
  share.release();
#ifdef __GLIBC__
  if (was_much) malloc_trim(0);
#endif
}

// Fields that were taken and change nothing, by name, so that nobody thinks that they did.
void say_left_out(const std::vector<std::string>& fields, HttpResponse* response) {
  constexpr size_t kMost = 32;
  std::string text;
  for (size_t i = 0; i < std::min(fields.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + fields[i];
  }
  if (fields.size() > kMost) text += ", and " + std::to_string(fields.size() - kMost) + " more";
  if (!text.empty()) response->headers.emplace_back("Sharpi-Ignored", text);
}

}  // namespace

HttpServer::HttpServer(const Engine& engine, const Settings& settings)
    : engine_(engine),
      settings_(settings),
      admission_(settings),
      budget_(settings.request_bytes()),
      scheduler_(engine, settings, metrics_),
      embeddings_(engine) {
  add_routes();
  add_embedding_routes();
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
    HttpResponse response = failure(request);
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
    exchange.response = failure(exchange.request);
  }
  if (!exchange.is_stream()) let_read(exchange.request, &exchange.response);
}

HttpResponse HttpServer::refusal(const HttpRequest& request, int status,
                                 const std::string& sentence) const {
  HttpResponse response = refused(request, RequestError(status, sentence));
  let_read(request, &response);
  return response;
}

// Clients of Anthropic's route read errors in a form of their own.
HttpResponse HttpServer::refused(const HttpRequest& request, const RequestError& e) const {
  const int status = e.status();
  const bool is_messages = request.path.starts_with("/v1/messages");
  HttpResponse response;
  response.status = status;
  response.type = "application/json";
  response.body = dump(is_messages ? messages_error_json(status, e.what())
                                   : error_json(status, e.what(), e.param(), e.code()));
  if (status == 429 || status == 503) response.headers.emplace_back("Retry-After", "1");
  if (status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

// The failure of any handler, as JSON with the status that fits.
HttpResponse HttpServer::failure(const HttpRequest& request) const {
  try {
    throw;
  } catch (const RequestError& e) {
    return refused(request, e);
  } catch (const Busy& e) {
    return refused(request, RequestError(429, e.what()));
  } catch (const LibraryError& e) {
    const bool theirs = e.status() == SHARPI_E_INVALID_ARGUMENT || e.status() == SHARPI_E_STATE ||
                        e.status() == SHARPI_E_UNSUPPORTED;
    const int status = theirs ? 400 : is_short_of_memory(e.status()) ? 503 : 500;
    return refused(request, RequestError(status, e.what(), "", sharpi_status_name(e.status())));
  } catch (const std::bad_alloc&) {
    return refused(request, RequestError(503, "memory is short"));
  } catch (const std::exception& e) {
    return refused(request, RequestError(500, e.what()));
  }
}

// A page that --allow-origin names may read the answer.
void HttpServer::let_read(const HttpRequest& request, HttpResponse* response) const {
  if (settings_.allow_origin.empty()) return;
  response->headers.emplace_back("Vary", "Origin");
  const std::string origin = admission_.named_origin(request);
  if (origin.empty()) return;
  response->headers.emplace_back("Access-Control-Allow-Origin", origin);
  response->headers.emplace_back("Access-Control-Expose-Headers", "Sharpi-Ignored, Retry-After");
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
bool HttpServer::given_up(const Exchange& exchange) const {
  if (stopping_) throw RequestError(503, "the server ends");
  return exchange.gone();
}

void HttpServer::answer(Exchange& exchange, JsonDocument body, Read read) {
  Asked asked = read(body.root(), engine_, settings_);
  body.clear();
  exchange.request.body = {};
  give_back(exchange.share());
  say_left_out(asked.left_out, &exchange.response);
  Delivery delivery(scheduler_, settings_, metrics_, asked, exchange);
  while (!delivery.wait_begun(kLook)) {
    if (given_up(exchange)) return;
  }
  if (asked.stream) return stream(delivery, exchange);
  std::string events = delivery.begin();  // nobody hears them
  while (delivery.step(kLook, &events)) {
    if (given_up(exchange)) return;
    events.clear();
  }
  if (delivery.cancelled()) return;
  delivery.finish();
  exchange.response.type = "application/json";
  exchange.response.body = dump(delivery.whole());
}

// Text that came together goes in one chunk.
void HttpServer::stream(Delivery& delivery, Exchange& exchange) {
  exchange.response.type = "text/event-stream";
  exchange.response.headers.emplace_back("Cache-Control", "no-cache");
  let_read(exchange.request, &exchange.response);
  if (!exchange.begin_stream()) return;
  std::string out = delivery.begin();
  auto said = Clock::now();
  try {
    for (bool more = true; more;) {
      more = delivery.step(out.empty() ? kLook : std::chrono::milliseconds(0), &out);
      if (exchange.gone() || delivery.cancelled()) return;
      if (!more) out += delivery.finish();
      if (out.empty() && Clock::now() - said >= kSilence) out = delivery.waiting();
      if (out.empty()) continue;
      if (!exchange.write(out)) return;
      out.clear();
      said = Clock::now();
    }
  } catch (const RequestError& e) {
    exchange.write(out + delivery.failed(e.status(), e.what()));
  }
  exchange.end_stream();
}

}  // namespace server
