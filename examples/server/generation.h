// SPDX-License-Identifier: MIT
// One answer to be written: what was asked for, and the pipe between the thread that computes and
// the thread of the connection.
// Thread rule: a Job is used by both; what the one and the other may call is said at each method.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine.h"

namespace server {

class Constraint;

using Clock = std::chrono::steady_clock;

struct Sampling {
  float temperature = 0, top_p = 1, min_p = 0, repeat_penalty = 1;
  uint32_t top_k = 0;
  uint64_t seed = 0;
  std::vector<int32_t> bias_tokens;
  std::vector<float> bias_values;
};

struct Generation {
  Tokens prompt;
  /// Lengths of the prompt that other prompts are likely to share: its system message, its
  /// conversation without the opening of the answer. Ascending.
  std::vector<uint32_t> boundaries;
  Sampling sampling;
  LoraScales lora;
  std::vector<std::string> stops;
  uint32_t max_tokens = 0;       // 0: until the context is full
  uint32_t n_logprobs = 0;       // entries a token: itself and the most probable ones; 0 = none
  bool prompt_logprobs = false;  // of the prompt's tokens, too; none of it is taken from a session
  uint32_t n_silent = 0;         // the first tokens of the prompt, which its text does not spell
  uint32_t text_flags = 0;       // SHARPI_DETOKENIZE_*
  /// What the text has to match; null = anything.
  std::shared_ptr<Constraint> constraint;
  /// Places of a schema that it does not enforce, where the request allows that.
  std::vector<std::string> unenforced;
};

/// What one token added.
struct Piece {
  int32_t token = -1;  // -1: text that was held back, no token of its own
  std::string text;    // whole characters
  // Characters that the token added, also where they are held back as the beginning of a stop
  // string or left out as one.
  size_t n_characters = 0;
  std::vector<sharpi_logprob> logprobs;  // of the prompt's first token there are none
};

enum class Finish { kStop, kLength, kCancelled, kFailed };

struct Usage {
  uint32_t prompt_tokens = 0, cached_tokens = 0, completion_tokens = 0;
};

struct Outcome {
  Finish finish = Finish::kCancelled;
  int http_status = 500;  // of a failure
  std::string error;      // its sentence
  Usage usage;
  std::string session;  // its id
  std::string stop;     // the stop string that ended it; empty: none did
};

/// How far a prompt is read, in tokens.
struct Progress {
  uint32_t read = 0, of = 0, held = 0;  // held: by the session before
};

class Job {
 public:
  /// @param gone whether nobody is there any more to take the answer; looked up by the compute
  /// thread between two steps, until cancel().
  explicit Job(Generation generation, std::function<bool()> gone = {})
      : generation_(std::move(generation)), gone_(std::move(gone)) {}
  const Generation& generation() const { return generation_; }

  /// Connection: waits until the answer was begun, or is over. False: the time was up before.
  bool wait_begun(std::chrono::milliseconds patience);
  /// Connection: cancels what still waits for a place. False: it has one meanwhile, or is over.
  bool expire();
  /// Connection: takes what came; waits for it a while. False: nothing more will come.
  bool take(std::vector<Piece>* out, std::chrono::milliseconds patience);
  /// Connection: the answer is not wanted any more. Stops a prompt that is being read, too. What
  /// `gone` refers to is not used afterwards.
  void cancel();
  /// Connection: final once take() was false.
  Outcome outcome() const;
  /// Any: of the prompt.
  Progress progress() const;

  /// Any: there is a place for it, so it is only waiting for the compute thread.
  void give_place();
  /// Compute: the session that answers, and how much of the prompt it held already.
  void begin(const std::string& session, uint32_t cached_tokens);
  /// Compute: between these two, cancel() reaches into the call that runs on the session.
  void enter(sharpi_session* session);
  void leave();
  /// Compute: it was cancelled, or nobody is there any more.
  bool abandoned();
  void push(Piece piece);
  /// Compute: tokens of the prompt that are read now.
  void set_read(uint32_t n_tokens) { n_read_ = n_tokens; }
  /// @param stop the stop string that was found; empty: none.
  void finish(Finish finish, uint32_t completion_tokens, std::string_view stop = {});
  void fail(int http_status, std::string_view sentence);

  const Clock::time_point asked_at = Clock::now();

 private:
  const Generation generation_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> pieces_;
  Outcome outcome_;
  bool placed_ = false, begun_ = false, finished_ = false, cancelled_ = false;
  sharpi_session* computing_ = nullptr;
  std::atomic<uint32_t> n_read_{0};
  std::function<bool()> gone_;
};

}  // namespace server
