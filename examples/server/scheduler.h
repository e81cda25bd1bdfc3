// SPDX-License-Identifier: MIT
// The thread that computes. Answers that are being written take their steps together; prompts are
// read in chunks between the steps; requests that find no place wait in a queue.
// Thread rule: public methods may be called from any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "answering.h"
#include "generation.h"
#include "session_cache.h"

namespace server {

/// The queue is full, or the server ends.
class Busy : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Scheduler {
 public:
  Scheduler(const Engine& engine, const Settings& settings, Metrics& metrics);
  ~Scheduler();

  /// Queues an answer. @param gone as Job has it. Throws Busy where the queue is full.
  std::shared_ptr<Job> submit(Generation generation, std::function<bool()> gone = {});
  /// Runs a function on the compute thread, between two steps, and waits for it. What it throws
  /// comes out here. Throws Busy where the server ends.
  void run(const std::function<void(SessionCache&)>& work);

 private:
  // Of a thread that waits in run(); touched by the compute thread until it is done, not after.
  struct Errand {
    const std::function<void(SessionCache&)>& work;
    std::exception_ptr failure = nullptr;
    bool done = false;
  };
  void loop();
  bool wait_for_work();
  void run_errands();
  void admit();
  bool admit_one(const std::shared_ptr<Job>& job);
  bool better_to_wait(const Generation& asked) const;
  void drop_abandoned();
  void read_prompts();
  void read_chunk(Answering& a);
  void pass_on(Answering& a, uint32_t begin, uint32_t n);
  void step();
  bool draws(Answering& a, const std::function<std::optional<Finish>()>& draw);
  void decode();
  void was_read(Answering& a);
  void decode_alone(Answering& a);
  void step_together();
  void step_alone(Answering& a, sharpi_batch_step* step);
  sharpi_status with_rows(Conversation* c, sharpi_error* err,
                          const std::function<sharpi_status()>& read);
  void end(Answering& a, Finish finish);
  void fail(Answering& a, int http_status, std::string_view sentence);
  void fail_all(std::string_view sentence);
  void erase_ended();
  void count();

  const Engine& engine_;
  const Settings& settings_;
  Metrics& metrics_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::atomic<size_t> n_answers_{0};  // answers_.size(), for submit()
  std::deque<std::shared_ptr<Job>> queue_;
  std::deque<Errand*> errands_;
  std::condition_variable errand_done_;

  // Of the compute thread.
  SessionCache sessions_;
  std::vector<std::unique_ptr<Answering>> answers_;
  size_t next_reader_ = 0;
  // Of one step; they have room for all slots, so that no step needs memory for them.
  std::vector<Answering*> writing_, batch_;
  std::vector<sharpi_session*> batch_sessions_;
  Tokens batch_tokens_;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace server
