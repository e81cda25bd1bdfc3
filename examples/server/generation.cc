// SPDX-License-Identifier: MIT
#include "generation.h"

#include <new>

namespace server {

bool Job::wait_begun(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, patience, [&] { return begun_ || finished_; });
}

bool Job::expire() {
  const std::lock_guard lock(mutex_);
  if (placed_ || begun_ || finished_) return false;
  cancelled_ = true;
  return true;
}

bool Job::take(std::vector<Piece>* out, std::chrono::milliseconds patience) {
  out->clear();
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return !pieces_.empty() || finished_; });
  std::swap(*out, pieces_);
  return !finished_ || !out->empty();
}

void Job::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  gone_ = nullptr;
  if (computing_ != nullptr) sharpi_session_cancel(computing_);
}

Outcome Job::outcome() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

Progress Job::progress() const {
  const std::lock_guard lock(mutex_);
  return {n_read_, static_cast<uint32_t>(generation_.prompt.size()), outcome_.usage.cached_tokens};
}

void Job::give_place() {
  const std::lock_guard lock(mutex_);
  placed_ = true;
}

void Job::begin(const std::string& session, uint32_t cached_tokens) {
  const std::lock_guard lock(mutex_);
  begun_ = true;
  outcome_.session = session;
  outcome_.usage.prompt_tokens = static_cast<uint32_t>(generation_.prompt.size());
  outcome_.usage.cached_tokens = cached_tokens;
  n_read_ = cached_tokens;
  changed_.notify_all();
}

void Job::enter(sharpi_session* session) {
  const std::lock_guard lock(mutex_);
  computing_ = session;
  if (cancelled_) sharpi_session_cancel(session);
}

void Job::leave() {
  const std::lock_guard lock(mutex_);
  // A cancel that came too late for the call would stop the next one.
  if (computing_ != nullptr) sharpi_session_resume(computing_);
  computing_ = nullptr;
}

bool Job::abandoned() {
  const std::lock_guard lock(mutex_);
  if (!cancelled_ && gone_ && gone_()) cancelled_ = true;
  return cancelled_;
}

void Job::push(Piece piece) {
  const std::lock_guard lock(mutex_);
  pieces_.push_back(std::move(piece));
  changed_.notify_all();
}

void Job::finish(Finish finish, uint32_t completion_tokens, std::string_view stop) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  outcome_.finish = finish;
  outcome_.usage.completion_tokens = completion_tokens;
  try {
    outcome_.stop = stop;
  } catch (const std::bad_alloc&) {  // its end is said all the same
    outcome_.stop.clear();
  }
  changed_.notify_all();
}

// Also said where there is no memory for its sentence.
void Job::fail(int http_status, std::string_view sentence) {
  const std::lock_guard lock(mutex_);
  if (finished_) return;
  finished_ = true;
  outcome_.finish = Finish::kFailed;
  outcome_.http_status = http_status;
  try {
    outcome_.error = sentence;
  } catch (const std::bad_alloc&) {
    outcome_.error = "memory is short";  // so short that it is no allocation
  }
  changed_.notify_all();
}

}  // namespace server
