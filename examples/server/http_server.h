// SPDX-License-Identifier: MIT
// The routes of the server over one engine and its scheduler.
// Thread rule: start and stop from one thread; requests come on threads of its own.
#pragma once

#include <atomic>
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
  void add_routes();
  void add_session_routes();
  void add_page();
  void guard(const httplib::Request& request) const;
  void answer(const httplib::Request& request, httplib::Response& response, Read read);
  bool given_up(const Delivery& delivery) const;
  void stream(std::shared_ptr<Delivery> delivery, httplib::Response& response);
  void refuse(httplib::Response& response, int status, const json& body) const;

  const Engine& engine_;
  const Settings& settings_;
  std::atomic<bool> stopping_{false};
  Metrics metrics_;
  Scheduler scheduler_;
  std::unique_ptr<Listening> http_;
};

}  // namespace server
