// SPDX-License-Identifier: MIT
// The routes of the server over one engine and its scheduler.
// Thread rule: start and stop from one thread; requests come on threads of its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine.h"
#include "fields.h"
#include "metrics.h"
#include "scheduler.h"

namespace httplib {
struct Request;
struct Response;
}  // namespace httplib

namespace server {

struct Asked;
struct Delivery;
class Listening;

class HttpServer {
 public:
  HttpServer(const Engine& engine, const Settings& settings);
  ~HttpServer();

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

 private:
  using Read = Asked (*)(const json& body, const Engine& engine, const Settings& settings);
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;
  using BodyHandler = std::function<void(const httplib::Request&, httplib::Response&, json body)>;
  void set_limits();
  void get(const std::string& pattern, const Handler& handler);
  void post(const std::string& pattern, const BodyHandler& handler);
  void add_routes();
  void add_session_routes();
  void add_page();
  void add_rest();
  void admit(const httplib::Request& request) const;
  bool admits(const httplib::Request& request, httplib::Response& response) const;
  void guard(const httplib::Request& request) const;
  void answer(const httplib::Request& request, httplib::Response& response, json body, Read read);
  bool given_up(const Delivery& delivery) const;
  void stream(std::shared_ptr<Delivery> delivery, httplib::Response& response);
  void refuse(httplib::Response& response, int status, const json& body) const;
  void refuse_failure(httplib::Response& response) const;

  const Engine& engine_;
  const Settings& settings_;
  std::atomic<bool> stopping_{false};
  Metrics metrics_;
  Scheduler scheduler_;
  std::unique_ptr<Listening> http_;
};

}  // namespace server
