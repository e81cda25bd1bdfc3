// SPDX-License-Identifier: MIT
// The answers of one request on their way: at most so many at a time, one behind the other where
// there are more. When nobody holds it any more, they are not wanted any more.
// Thread rule: the thread that serves the connection.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "answer_format.h"
#include "exchange.h"
#include "generation.h"
#include "metrics.h"
#include "scheduler.h"

namespace server {

class Delivery {
 public:
  /// Queues the first ones. Throws Busy where the queue is full.
  Delivery(Scheduler& scheduler, const Settings& settings, Metrics& metrics, Asked& asked,
           const Exchange& exchange);
  ~Delivery() { cancel(); }
  Delivery(const Delivery&) = delete;
  Delivery& operator=(const Delivery&) = delete;

  /// Waits until one was begun. False: none is yet. Throws RequestError where none will be.
  bool wait_begun(std::chrono::milliseconds patience);
  /// Events before all others.
  std::string begin();
  /// Takes what came, and waits a while where nothing did. False: all have ended. Throws
  /// RequestError where one of them failed, or found no place.
  bool step(std::chrono::milliseconds patience, std::string* events);
  /// Events behind all others.
  std::string finish() { return format_->finish(usage_); }
  json whole() { return format_->whole(usage_); }
  /// What is said while nothing comes, of the prompt that is read; empty where none is.
  std::string waiting();
  std::string failed(int http_status, const std::string& sentence) {
    return format_->failed(http_status, sentence);
  }
  /// An answer was cut off, as nobody waits for it.
  bool cancelled() const { return cancelled_; }

 private:
  struct Answer {
    size_t choice;
    std::shared_ptr<Job> job;
    Clock::time_point late;  // when it has to have a place
    bool begun = false, ended = false;
  };
  void submit();
  void cancel();
  void check_late(Answer& answer);
  bool take(Answer& answer, std::chrono::milliseconds patience, std::string* events);
  void add_usage(size_t choice, const Usage& usage);

  Scheduler& scheduler_;
  const Settings& settings_;
  Metrics& metrics_;
  const Exchange& peer_;
  const std::unique_ptr<AnswerFormat> format_;
  std::vector<Generation> generations_;
  const size_t per_prompt_;
  size_t next_ = 0;  // of those that are not queued yet
  std::vector<Answer> answers_;
  Usage usage_;
  bool cancelled_ = false;
};

}  // namespace server
