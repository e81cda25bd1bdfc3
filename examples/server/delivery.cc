// SPDX-License-Identifier: MIT
#include "delivery.h"

#include <algorithm>
#include <utility>

#include "sse.h"

namespace server {

// Comments are lines that every reader of events leaves out.
std::string AnswerFormat::waiting(const Progress& progress) {
  return ": keep-alive, " + std::to_string(progress.read) + " of " + std::to_string(progress.of) +
         " tokens read\n\n";
}

std::string AnswerFormat::failed(int http_status, const std::string& sentence) {
  return event(error_json(http_status, sentence));
}

Delivery::Delivery(Scheduler& scheduler, const Settings& settings, Metrics& metrics, Asked& asked,
                   const Exchange& exchange)
    : scheduler_(scheduler),
      settings_(settings),
      metrics_(metrics),
      peer_(exchange),
      format_(std::move(asked.format)),
      generations_(std::move(asked.generations)),
      per_prompt_(asked.per_prompt) {
  answers_.reserve(std::min<size_t>(generations_.size(), settings.slots));
  try {
    submit();
  } catch (...) {
    cancel();
    throw;
  }
}

// From here on nobody looks at the peer.
void Delivery::cancel() {
  for (const Answer& answer : answers_) answer.job->cancel();
}

// Others wait for a place, too: one request has as many at a time as answers are written together.
void Delivery::submit() {
  while (next_ < generations_.size() && answers_.size() < settings_.slots) {
    try {
      // Copied: where the queue is full, it comes again.
      Generation generation = generations_[next_];
      auto job = scheduler_.submit(std::move(generation), [this] { return peer_.gone(); });
      const auto late = Clock::now() + std::chrono::seconds(settings_.queue_timeout);
      answers_.push_back({next_, std::move(job), late});
    } catch (const Busy&) {
      if (answers_.empty()) throw;
      return;
    }
    generations_[next_++] = {};
  }
}

void Delivery::check_late(Answer& answer) {
  if (answer.begun || Clock::now() < answer.late || !answer.job->expire()) return;
  metrics_.refused_late++;
  throw RequestError(
      503, "no place became free in " + std::to_string(settings_.queue_timeout) + " seconds");
}

bool Delivery::wait_begun(std::chrono::milliseconds patience) {
  Answer& first = answers_.front();
  first.begun = first.job->wait_begun(patience);
  check_late(first);
  if (!first.begun) return false;
  const Outcome outcome = first.job->outcome();
  if (outcome.finish == Finish::kFailed) throw RequestError(outcome.http_status, outcome.error);
  return true;
}

std::string Delivery::begin() {
  return format_->begin(answers_.front().job->outcome());
}

std::string Delivery::waiting() {
  for (const Answer& answer : answers_) {
    const Progress progress = answer.job->progress();
    if (answer.begun && progress.read < progress.of) return format_->waiting(progress);
  }
  return "";
}

// Choices of one prompt have read it once.
void Delivery::add_usage(size_t choice, const Usage& usage) {
  usage_.completion_tokens += usage.completion_tokens;
  if (choice % per_prompt_ != 0) return;
  usage_.prompt_tokens += usage.prompt_tokens;
  usage_.cached_tokens += usage.cached_tokens;
}

// True: something came.
bool Delivery::take(Answer& answer, std::chrono::milliseconds patience, std::string* events) {
  if (!answer.begun) answer.begun = answer.job->wait_begun(patience);
  check_late(answer);
  if (!answer.begun) return false;
  std::vector<Piece> pieces;
  if (answer.job->take(&pieces, patience)) {
    if (!pieces.empty()) *events += format_->pieces(answer.choice, pieces);
    return !pieces.empty();
  }
  const Outcome outcome = answer.job->outcome();
  if (outcome.finish == Finish::kFailed) throw RequestError(outcome.http_status, outcome.error);
  answer.ended = true;
  cancelled_ = cancelled_ || outcome.finish == Finish::kCancelled;
  if (!cancelled_) *events += format_->end(answer.choice, outcome);
  add_usage(answer.choice, outcome.usage);
  return true;
}

bool Delivery::step(std::chrono::milliseconds patience, std::string* events) {
  submit();
  bool came = false;
  const bool alone = answers_.size() == 1;
  for (Answer& answer : answers_) {
    came |= take(answer, alone ? patience : std::chrono::milliseconds(0), events);
  }
  // Those that write take their steps together, so what the first one has, others have.
  if (!came && !alone && !answers_.empty()) take(answers_.front(), patience, events);
  std::erase_if(answers_, [](const Answer& answer) { return answer.ended; });
  return !cancelled_ && (!answers_.empty() || next_ < generations_.size());
}

}  // namespace server
