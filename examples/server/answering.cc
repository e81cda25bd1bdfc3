// SPDX-License-Identifier: MIT
#include "answering.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "constraint.h"

namespace server {
namespace {

size_t count_characters(const std::string& text) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), begins));
}

// As sharpi_sample_params gives them: the token first, then the most probable ones, ties by id.
std::vector<sharpi_logprob> logprobs_of(const std::vector<float>& logits, int32_t token,
                                        uint32_t n) {
  const float top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x - top));
  const double all = top + std::log(sum);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const size_t most = std::min<size_t>(n - 1, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(most), ids.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  const auto of = [&](int32_t id) {
    return sharpi_logprob{id, static_cast<float>(logits[static_cast<size_t>(id)] - all)};
  };
  std::vector<sharpi_logprob> out{of(token)};
  for (size_t i = 0; i < most; ++i) out.push_back(of(ids[i]));
  return out;
}

}  // namespace

Answering::Answering(const Engine& engine, std::shared_ptr<Job> job, Conversation* conversation)
    : engine_(engine), job_(std::move(job)), conversation_(conversation) {
  const Generation& g = job_->generation();
  for (const std::string& stop : g.stops) stops_.push_back(stop.c_str());
  sharpi_sampler_params p;
  sharpi_sampler_params_init(&p, sizeof p);
  p.temperature = g.sampling.temperature;
  p.top_k = g.sampling.top_k;
  p.top_p = g.sampling.top_p;
  p.min_p = g.sampling.min_p;
  p.repeat_penalty = g.sampling.repeat_penalty;
  p.seed = g.sampling.seed;
  p.n_bias = static_cast<uint32_t>(g.sampling.bias_tokens.size());
  p.bias_tokens = g.sampling.bias_tokens.data();
  p.bias_values = g.sampling.bias_values.data();
  sharpi_error err = SHARPI_ERROR_INIT;
  check(sharpi_session_set_sampler(conversation->session.get(), &p, &err), err);
}

uint32_t Answering::next_boundary(uint32_t from) const {
  for (const uint32_t boundary : job_->generation().boundaries) {
    if (boundary > from && boundary < prompt().size()) return boundary;
  }
  return static_cast<uint32_t>(prompt().size());
}

// Rows of logits are counted from the last token that was read; a prompt's last row is of the
// answer.
void Answering::push_prompt(uint32_t begin, uint32_t n) {
  const Generation& g = job_->generation();
  const auto size = static_cast<uint32_t>(prompt().size());
  if (begin == 0) push_of_prompt(0, {});
  for (uint32_t i = begin; i < begin + n && i + 1 < size; ++i) {
    const uint32_t row = begin + n - 1 - i;
    const auto logits = sized<std::vector<float>, uint32_t>(
        [&](float* to, uint32_t cap, uint32_t* len, sharpi_error* err) {
          return sharpi_session_logits(conversation_->session.get(), row, to, cap, len, err);
        });
    push_of_prompt(i + 1, logprobs_of(logits, prompt()[i + 1], g.n_logprobs));
  }
}

void Answering::push_of_prompt(uint32_t at, std::vector<sharpi_logprob> logprobs) {
  const int32_t token = prompt()[at];
  const std::string text =
      sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, sharpi_error* err) {
        return sharpi_detokenize_stream(engine_.model(), &prompt_characters_, &token, 1,
                                        SHARPI_DETOKENIZE_SPECIAL, to, cap, len, err);
      });
  const size_t n = at < job_->generation().n_silent ? 0 : count_characters(text);
  job_->push({token, "", n, std::move(logprobs)});
}

// For the draws of so many tokens, with the mask of the first one.
sharpi_sample_params Answering::draw_params(std::vector<sharpi_logprob>* logprobs,
                                            uint32_t n_tokens) const {
  const Generation& g = job_->generation();
  logprobs->assign(size_t{n_tokens} * g.n_logprobs, {});
  sharpi_sample_params p;
  sharpi_sample_params_init(&p, sizeof p);
  p.n_logprobs = g.n_logprobs;
  p.logprobs = logprobs->data();
  const std::vector<uint32_t>* mask = g.constraint != nullptr ? g.constraint->mask() : nullptr;
  if (mask != nullptr) {
    p.allowed_mask = mask->data();
    p.mask_words = static_cast<uint32_t>(mask->size());
  }
  return p;
}

std::optional<Finish> Answering::draw() {
  std::vector<sharpi_logprob> logprobs;
  const sharpi_sample_params p = draw_params(&logprobs, 1);
  sharpi_error err = SHARPI_ERROR_INIT;
  check(sharpi_session_sample(conversation_->session.get(), &p, &token_, &err), err);
  return take(token_, std::move(logprobs));
}

bool Answering::at_last_token() const {
  const uint32_t most = job_->generation().max_tokens;
  return most != 0 && n_drawn_ + 1 >= most;
}

bool Answering::can_draft() const {
  return job_->generation().constraint == nullptr && !at_last_token();
}

sharpi_batch_step Answering::begin_step(uint32_t n_draft) {
  const uint32_t most = job_->generation().max_tokens;
  const uint32_t left = most == 0 ? n_draft + 1 : most - n_drawn_;
  // A mask is known for the next token alone, and a thought that ends has one behind it.
  const uint32_t cap = can_draft() ? std::min(n_draft + 1, left) : 1;
  step_tokens_.assign(cap, -1);
  step_params_ = draw_params(&step_logprobs_, cap);
  return {conversation_->session.get(), &step_params_, step_tokens_.data(), cap, 0};
}

std::optional<Finish> Answering::take_step(uint32_t n) {
  const uint32_t n_logprobs = job_->generation().n_logprobs;
  std::optional<Finish> finish;
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t token = step_tokens_[i];
    const auto* first = step_logprobs_.data() + size_t{i} * n_logprobs;
    // What stands behind a stop string was read, too, but is no part of the answer.
    if (!finish) finish = take(token, {first, first + n_logprobs});
    if (!engine_.ends(token)) was_read(token);
  }
  return finish;
}

std::optional<Finish> Answering::take(int32_t token, std::vector<sharpi_logprob> logprobs) {
  const Generation& g = job_->generation();
  if (n_drawn_++ == 0) first_drawn_ = Clock::now();
  if (engine_.ends(token)) {
    flush();
    return Finish::kStop;
  }
  push(token, std::move(logprobs));
  if (stop_.stopped != 0) return Finish::kStop;
  if (g.constraint != nullptr && g.constraint->complete()) {
    flush();
    return Finish::kStop;
  }
  if (g.max_tokens != 0 && n_drawn_ >= g.max_tokens) {
    flush();
    return Finish::kLength;
  }
  return std::nullopt;
}

void Answering::push(int32_t token, std::vector<sharpi_logprob> logprobs) {
  const std::string text =
      sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, sharpi_error* err) {
        return sharpi_detokenize_stream(engine_.model(), &characters_, &token, 1,
                                        job_->generation().text_flags, to, cap, len, err);
      });
  const auto& constraint = job_->generation().constraint;
  if (constraint != nullptr) constraint->accept(token, text);
  job_->push({token, stopped_text(text), count_characters(text), std::move(logprobs)});
}

// The text up to a stop string; what may become one waits.
std::string Answering::stopped_text(const std::string& text) {
  if (stops_.empty()) return text;
  return sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, sharpi_error* err) {
    return sharpi_stop_stream_push(&stop_, stops_.data(), static_cast<uint32_t>(stops_.size()),
                                   text.data(), text.size(), to, cap, len, err);
  });
}

void Answering::flush() {
  const std::string text =
      sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, sharpi_error* err) {
        return sharpi_text_stream_finish(&characters_, to, cap, len, err);
      });
  std::string rest = stopped_text(text);
  rest += sized<std::string, size_t>([&](char* to, size_t cap, size_t* len, sharpi_error* err) {
    return sharpi_stop_stream_finish(&stop_, to, cap, len, err);
  });
  if (!rest.empty()) job_->push({-1, rest, 0, {}});
}

bool Answering::is_prepared(std::chrono::microseconds patience) const {
  const auto& constraint = job_->generation().constraint;
  return constraint == nullptr || constraint->is_prepared(patience);
}

void Answering::was_read(int32_t token) {
  conversation_->tokens.push_back(token);
  const double seconds = std::chrono::duration<double>(Clock::now() - first_drawn_).count();
  if (seconds > 0) conversation_->tokens_per_second = n_drawn_ / seconds;
}

}  // namespace server
