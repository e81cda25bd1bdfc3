// SPDX-License-Identifier: MIT
// Counters of the server, and their text for Prometheus (format 0.0.4).
// Thread rule: any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

namespace server {

/// Observations in buckets of fixed bounds, in seconds.
class Histogram {
 public:
  void observe(double seconds);
  void write(std::string* out, const char* name, const char* help) const;

 private:
  static constexpr std::array<double, 13> kBounds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                     0.25,  0.5,    1,     2.5,  10,    60};
  mutable std::mutex mutex_;
  std::array<uint64_t, kBounds.size() + 1> counts_{};
  uint64_t count_ = 0;
  double sum_ = 0;
};

struct Metrics {
  std::atomic<uint64_t> prompt_tokens{0};     // read
  std::atomic<uint64_t> cached_tokens{0};     // of prompts, held already
  std::atomic<uint64_t> generated_tokens{0};  // drawn
  std::atomic<uint64_t> drafted_tokens{0}, accepted_tokens{0};
  std::atomic<uint64_t> steps{0};      // rounds of all answers that are written
  std::atomic<uint64_t> cancelled{0};  // answers whose reader went away
  std::atomic<uint64_t> refused_full{0}, refused_late{0};
  std::atomic<uint64_t> forks{0}, sessions_dropped{0}, sessions_compacted{0}, sessions_saved{0},
      sessions_unsaved{0}, sessions_restored{0};
  std::atomic<uint64_t> waiting{0}, writing{0}, reading{0}, sessions{0}, kv_held_bytes{0};
  Histogram time_to_first_token, between_tokens;

  void count_response(int http_status) noexcept;
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::array<uint64_t, 600> responses_{};  // by status
};

}  // namespace server
