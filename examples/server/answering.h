// SPDX-License-Identifier: MIT
// One answer being written: how far its prompt is read, the token that was drawn, the text so far
// up to stop strings.
// Thread rule: the compute thread only.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "generation.h"
#include "session_cache.h"

namespace server {

class Answering {
 public:
  /// Sets the session's sampler. Throws LibraryError.
  Answering(const Engine& engine, std::shared_ptr<Job> job, Conversation* conversation);

  Job& job() { return *job_; }
  Conversation* conversation() { return conversation_; }
  bool reading() const { return conversation_->tokens.size() < prompt().size() && !read_; }
  void set_read() { read_ = true; }
  const Tokens& prompt() const { return job_->generation().prompt; }
  /// The next length at which the prompt has a boundary, or its end.
  uint32_t next_boundary(uint32_t from) const;

  /// Passes on n tokens of the prompt from `begin` on, and behind the first one what was thought of
  /// each. Pre: the n before the last are read, with logits. Throws LibraryError, std::bad_alloc.
  void push_prompt(uint32_t begin, uint32_t n);

  /// Draws the next token and passes its text on. A value: the answer is complete, and why.
  /// Throws LibraryError.
  std::optional<Finish> draw();
  /// No schema and room for a draft: a step may bring more than draw().
  bool can_draft() const;
  /// The next token is the last one that was asked for, so nobody needs it to be read.
  bool at_last_token() const;
  /// A step that draws a token and reads it, with as many drafts as there is room for. It points
  /// into this answer, until the next one.
  sharpi_batch_step begin_step(uint32_t n_draft);
  /// Passes on the first n tokens of the step, which were read. As draw().
  std::optional<Finish> take_step(uint32_t n);
  /// The token to be read next.
  int32_t token() const { return token_; }
  uint32_t n_drawn() const { return n_drawn_; }
  /// The stop string that was found; empty: none.
  std::string_view stop() const { return stop_.stopped != 0 ? stops_[stop_.which] : ""; }
  /// Passes on what was held back, unless a stop string was found.
  void flush();
  /// The mask of the next draw, where it has one, is there; it is waited for up to `patience`.
  bool is_prepared(std::chrono::microseconds patience) const;
  /// After the step that read the token.
  void was_read() { was_read(token_); }

  bool ended = false;

 private:
  void was_read(int32_t token);
  sharpi_sample_params draw_params(std::vector<sharpi_logprob>* logprobs, uint32_t n_tokens) const;
  std::optional<Finish> take(int32_t token, std::vector<sharpi_logprob> logprobs);
  void push(int32_t token, std::vector<sharpi_logprob> logprobs);
  void push_of_prompt(uint32_t at, std::vector<sharpi_logprob> logprobs);
  std::string stopped_text(const std::string& text);

  const Engine& engine_;
  std::shared_ptr<Job> job_;
  Conversation* conversation_;
  std::vector<const char*> stops_;
  sharpi_text_stream characters_{}, prompt_characters_{};
  sharpi_stop_stream stop_{};
  int32_t token_ = -1;
  uint32_t n_drawn_ = 0;
  bool read_ = false;
  // Of the step.
  sharpi_sample_params step_params_{};
  Tokens step_tokens_;
  std::vector<sharpi_logprob> step_logprobs_;
  Clock::time_point first_drawn_;
};

}  // namespace server
