// SPDX-License-Identifier: MIT
#include "metrics.h"

#include <cinttypes>
#include <cstdio>

namespace server {
namespace {

void header(std::string* out, const char* name, const char* kind, const char* help) {
  *out += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + kind + "\n";
}

void line(std::string* out, const std::string& name, uint64_t value) {
  *out += name + " " + std::to_string(value) + "\n";
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

void Histogram::observe(double seconds) {
  size_t bucket = 0;
  while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
  const std::lock_guard lock(mutex_);
  ++counts_[bucket];
  ++count_;
  sum_ += seconds;
}

void Histogram::write(std::string* out, const char* name, const char* help) const {
  header(out, name, "histogram", help);
  const std::lock_guard lock(mutex_);
  uint64_t below = 0;
  for (size_t i = 0; i < kBounds.size(); ++i) {
    below += counts_[i];
    line(out, std::string(name) + "_bucket{le=\"" + number(kBounds[i]) + "\"}", below);
  }
  line(out, std::string(name) + "_bucket{le=\"+Inf\"}", count_);
  *out += std::string(name) + "_sum " + number(sum_) + "\n";
  line(out, std::string(name) + "_count", count_);
}

void Metrics::count_response(int http_status) noexcept {
  const std::lock_guard lock(mutex_);
  const auto status = static_cast<size_t>(http_status);
  if (status < responses_.size()) ++responses_[status];
}

std::string Metrics::text() const {
  struct Row {
    const char* name;
    const char* kind;
    const char* help;
    const std::atomic<uint64_t>& value;
  };
  const Row rows[] = {
      {"sharpi_prompt_tokens_total", "counter", "Tokens of prompts that were read.", prompt_tokens},
      {"sharpi_cached_tokens_total", "counter", "Tokens of prompts that a session held already.",
       cached_tokens},
      {"sharpi_generated_tokens_total", "counter", "Tokens drawn.", generated_tokens},
      {"sharpi_drafted_tokens_total", "counter", "Drafts that were read.", drafted_tokens},
      {"sharpi_accepted_tokens_total", "counter", "Drafts that were right.", accepted_tokens},
      {"sharpi_steps_total", "counter", "Steps in which sessions decoded together.", steps},
      {"sharpi_cancelled_total", "counter", "Answers whose reader went away.", cancelled},
      {"sharpi_refused_full_total", "counter", "Requests refused with 429.", refused_full},
      {"sharpi_refused_late_total", "counter", "Requests refused with 503.", refused_late},
      {"sharpi_session_forks_total", "counter", "Sessions forked for a shared prefix.", forks},
      {"sharpi_sessions_dropped_total", "counter", "Idle sessions given up.", sessions_dropped},
      {"sharpi_sessions_compacted_total", "counter", "Idle sessions compacted.",
       sessions_compacted},
      {"sharpi_sessions_saved_total", "counter", "Idle sessions saved to disk.", sessions_saved},
      {"sharpi_sessions_unsaved_total", "counter", "Idle sessions that could not be saved.",
       sessions_unsaved},
      {"sharpi_sessions_restored_total", "counter", "Sessions restored from disk.",
       sessions_restored},
      {"sharpi_requests_waiting", "gauge", "Requests in the queue.", waiting},
      {"sharpi_requests_reading", "gauge", "Requests whose prompt is being read.", reading},
      {"sharpi_requests_writing", "gauge", "Requests whose answer is being written.", writing},
      {"sharpi_sessions", "gauge", "Sessions held, idle ones included.", sessions},
      {"sharpi_kv_held_bytes", "gauge", "Memory of the KV rows of all sessions.", kv_held_bytes},
  };
  std::string out;
  for (const Row& row : rows) {
    header(&out, row.name, row.kind, row.help);
    line(&out, row.name, row.value.load(std::memory_order_relaxed));
  }
  header(&out, "sharpi_http_responses_total", "counter", "Responses by status.");
  {
    const std::lock_guard lock(mutex_);
    for (size_t status = 0; status < responses_.size(); ++status) {
      if (responses_[status] == 0) continue;
      line(&out, "sharpi_http_responses_total{status=\"" + std::to_string(status) + "\"}",
           responses_[status]);
    }
  }
  time_to_first_token.write(&out, "sharpi_time_to_first_token_seconds",
                            "From the request to its first token.");
  between_tokens.write(&out, "sharpi_step_seconds", "One step of all answers being written.");
  return out;
}

}  // namespace server
