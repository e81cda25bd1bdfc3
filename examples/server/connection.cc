// SPDX-License-Identifier: MIT
#include "connection.h"

#include <algorithm>

namespace server {
namespace {

// A connection that begins no request is closed then.
constexpr std::chrono::seconds kRest{5};
// A request that has begun and sends nothing for so long does not go on; nor does an answer of
// which nothing is taken.
constexpr std::chrono::seconds kSilence{10};
// How long a client may be silent, that got its last answer, before what it still sends is no
// longer waited for.
constexpr std::chrono::seconds kLastSilence{2};

}  // namespace

Connection::~Connection() {
  close_socket(socket_);
}

void Connection::enter(State state) {
  if (state == State::kArrives && state_ != State::kArrives) begun_at_ = Clock::now();
  state_ = state;
  changed_at_ = progress_at_ = Clock::now();
}

Connection::Clock::time_point Connection::deadline() const {
  switch (state_) {
    case State::kRests:
      return progress_at_ + kRest;
    case State::kArrives:
      return std::min(progress_at_ + kSilence, begun_at_ + arrival_);
    case State::kLeaves:
      return progress_at_ + kSilence;
    case State::kDrains:
      return std::min(progress_at_ + kLastSilence,
                      std::max(begun_at_ + arrival_, changed_at_ + kLastSilence));
    case State::kIsServed:
    case State::kIsClosed:
      break;
  }
  return Clock::time_point::max();
}

void Connection::begin_request(uint64_t most_body, MemoryBudget& budget) {
  parser_ = std::make_unique<HttpParser>(most_body, budget);
  judged = false;
  enter(State::kArrives);
}

void Connection::put(const HttpResponse& response, bool without_body, bool is_http_1_0) {
  std::string text = head_of_whole(response, closes, is_http_1_0);
  if (!without_body && response.fixed.empty()) text += response.body;
  output_ += text;
  if (!without_body) fixed_ = response.fixed;
}

void Connection::put_out_of_memory() {
  output_.clear();
  written_ = 0;
  fixed_ = kOutOfMemoryAnswer;
  closes = true;
}

bool Connection::flush() {
  while (has_output()) {
    const bool own = written_ < output_.size();
    const std::string_view rest = own ? std::string_view(output_).substr(written_) : fixed_;
    const Moved sent = send_some(socket_, rest);
    if (sent.why != Moved::Why::kDone) return sent.why == Moved::Why::kNothingNow;
    made_progress();
    if (own) {
      written_ += sent.bytes;
    } else {
      fixed_.remove_prefix(sent.bytes);
    }
  }
  output_ = {};  // gives a long one's memory back
  written_ = 0;
  return true;
}

}  // namespace server
