// SPDX-License-Identifier: MIT
#include "constraint.h"

#include <system_error>

namespace server {
namespace {

// Every mark begins with one of these, and none is longer.
constexpr char kMarks[] = "<[";
constexpr size_t kLongestMark = 64;

}  // namespace

Constraint::Constraint(const sharpi_grammar* grammar, std::string prompt_end, bool is_answer)
    : prompt_end_(std::move(prompt_end)),
      in_messages_(is_answer && open_part(SHARPI_PARSE_REASONING) == SHARPI_PART_HEADER),
      active_(!waits()) {
  sharpi_error err = SHARPI_ERROR_INIT;
  sharpi_matcher* matcher = nullptr;
  check(sharpi_matcher_create(grammar, &matcher, &err), err);
  matcher_.reset(matcher);
  uint32_t n_words = 0;
  sharpi_matcher_mask(matcher, nullptr, 0, &n_words, nullptr);
  mask_.resize(n_words);
  if (!active_) return;
  make_mask();
  mask();
}

Constraint::~Constraint() {
  if (making_.valid()) making_.wait();
}

sharpi_part Constraint::open_part(uint32_t kinds) const {
  sharpi_parse_params params;
  sharpi_parse_params_init(&params, sizeof params);
  params.flags = SHARPI_PARSE_PARTIAL | kinds;
  params.prompt = prompt_end_.data();
  params.prompt_len = prompt_end_.size();
  sharpi_chat_parts parts{};
  parts.struct_size = sizeof parts;
  size_t needed = 0;
  sharpi_chat_parse(&params, thoughts_.data(), thoughts_.size(), &parts, nullptr, 0, &needed,
                    nullptr);
  return parts.open;
}

bool Constraint::waits() const {
  if (!in_messages_) return open_part(SHARPI_PARSE_REASONING) == SHARPI_PART_REASONING;
  return open_part(SHARPI_PARSE_REASONING | SHARPI_PARSE_CALLS) != SHARPI_PART_CONTENT;
}

// Thoughts, or the header of the answer, may have ended with this text: they are parsed anew only
// where a mark is, so that long ones cost no more than their length.
bool Constraint::may_begin(const std::string& text) {
  const size_t at = text.find_last_of(kMarks);
  thoughts_ += text;
  if (at != std::string::npos) mark_ = thoughts_.size() - text.size() + at;
  return thoughts_.size() - mark_ <= kLongestMark && !waits();
}

void Constraint::make_mask() {
  uint32_t n = 0;
  failure_.status = SHARPI_OK;
  sharpi_matcher_mask(matcher_.get(), mask_.data(), static_cast<uint32_t>(mask_.size()), &n,
                      &failure_);
  prepared_ = true;
}

// Where there is no thread to be had, the draw makes its own mask.
void Constraint::prepare() {
  if (!active_ || prepared_ || making_.valid()) return;
  try {
    making_ = std::async(std::launch::async, [this] { make_mask(); });
  } catch (const std::system_error&) {
    make_mask();
  }
}

bool Constraint::is_prepared(std::chrono::microseconds patience) {
  prepare();
  if (!making_.valid()) return true;
  if (making_.wait_for(patience) != std::future_status::ready) return false;
  making_.get();
  return true;
}

const std::vector<uint32_t>* Constraint::mask() {
  if (!active_) return nullptr;
  if (making_.valid()) making_.get();
  if (!prepared_) make_mask();
  check(failure_.status, failure_);
  return &mask_;
}

void Constraint::accept(int32_t token, const std::string& text) {
  if (!active_) {
    active_ = may_begin(text);
  } else {
    sharpi_error err = SHARPI_ERROR_INIT;
    check(sharpi_matcher_accept(matcher_.get(), token, &err), err);
    prepared_ = false;
    complete_ = sharpi_matcher_progress(matcher_.get()) == SHARPI_MATCH_COMPLETE;
  }
  if (!complete_) prepare();
}

}  // namespace server
