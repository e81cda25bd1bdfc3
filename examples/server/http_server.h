// SPDX-License-Identifier: MIT
// The routes of the server over one engine and its scheduler.
// Thread rule: start and stop from one thread; requests come on threads of its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admission.h"
#include "embeddings.h"
#include "engine.h"
#include "fields.h"
#include "http_listener.h"
#include "metrics.h"
#include "scheduler.h"

namespace server {

struct Asked;
class Delivery;
class JsonDocument;

class HttpServer : private HttpHandler {
 public:
  HttpServer(const Engine& engine, const Settings& settings);
  ~HttpServer() override;

  /// Takes the address. Throws std::runtime_error with a sentence where it cannot be had.
  /// @return the port.
  int bind();
  /// Serves until stop().
  void listen();
  void stop();
  std::string address(int port) const;
  /// The thread that computes, for what is to run between two of its steps.
  Scheduler& scheduler() { return scheduler_; }
  const Metrics& metrics() const { return metrics_; }
  const MemoryBudget& budget() const { return budget_; }

 private:
  /// The parts of a path that its route has "*" for.
  using Parts = std::vector<std::string>;
  using Read = Asked (*)(const json& body, const Engine& engine, const Settings& settings);
  using Static = std::function<HttpResponse()>;
  using Handler = std::function<void(Exchange&, const Parts&)>;
  using BodyHandler = std::function<void(Exchange&, JsonDocument, const Parts&)>;
  struct Route {
    std::string method, path;
    Static at_once;   // what needs no thread of its own
    Handler handler;  // what does
  };

  std::optional<HttpResponse> judge(const HttpRequest& request) override;
  bool takes_body(const HttpRequest& request) const override;
  void serve(Exchange& exchange) override;
  HttpResponse refusal(const HttpRequest& request, int status,
                       const std::string& sentence) const override;
  void answered(int status) noexcept override { metrics_.count_response(status); }

  const Route* find_route(const HttpRequest& request, Parts* parts) const;
  void get(const std::string& path, Handler handler);
  void get_at_once(const std::string& path, const HttpResponse& response);
  void post(const std::string& path, const BodyHandler& handler);
  void add_routes();
  void add_embedding_routes();
  void add_session_routes();
  void add_page();
  HttpResponse preflight(const HttpRequest& request) const;
  void answer(Exchange& exchange, JsonDocument body, Read read);
  bool given_up(const Exchange& exchange) const;
  void stream(Delivery& delivery, Exchange& exchange);
  HttpResponse refused(const HttpRequest& request, const RequestError& error) const;
  HttpResponse failure(const HttpRequest& request) const;
  void let_read(const HttpRequest& request, HttpResponse* response) const;

  const Engine& engine_;
  const Settings& settings_;
  const Admission admission_;
  std::atomic<bool> stopping_{false};
  Metrics metrics_;
  MemoryBudget budget_;
  Scheduler scheduler_;
  Embeddings embeddings_;
  std::vector<Route> routes_;
  std::unique_ptr<HttpListener> http_;
};

}  // namespace server
