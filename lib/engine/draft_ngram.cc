// SPDX-License-Identifier: MIT
#include "engine/draft_ngram.h"

#include <algorithm>

#include "plan/plan.h"
#include "plan/session_plan.h"

namespace sharpi {
namespace {

constexpr uint32_t kNone = 0xFFFFFFFFu;
constexpr uint32_t kGram = 3;      // tokens that must agree at least
constexpr uint32_t kPlaces = 16;   // earlier places that are compared
constexpr uint32_t kLongest = 64;  // an agreement longer than this says no more

}  // namespace

NgramDrafter::NgramDrafter(uint32_t n_ctx)
    : newest_(ngram_buckets(n_ctx), kNone), older_(n_ctx, kNone) {}

uint32_t NgramDrafter::bucket(int32_t a, int32_t b, int32_t c) const {
  uint64_t h = static_cast<uint32_t>(a);
  for (const int32_t t : {b, c}) h = (h ^ static_cast<uint32_t>(t)) * 0x9E3779B97F4A7C15ull;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9ull;
  return static_cast<uint32_t>(h >> 32) & static_cast<uint32_t>(newest_.size() - 1);
}

/// Entry p stands for the tokens before p; p itself is where a draft would start.
void NgramDrafter::index(std::span<const int32_t> history) {
  for (uint32_t p = std::max(n_indexed_, kGram); p < history.size(); ++p) {
    uint32_t& head = newest_[bucket(history[p - 3], history[p - 2], history[p - 1])];
    uint32_t before = head;
    while (before != kNone && before >= p) before = older_[before];  // of a truncated text
    older_[p] = before;
    head = p;
  }
  n_indexed_ = static_cast<uint32_t>(history.size());
}

NgramDrafter::Found NgramDrafter::longest(std::span<const int32_t> history, int32_t next) const {
  Found best;
  const auto n = static_cast<uint32_t>(history.size());
  uint32_t at = newest_[bucket(history[n - 2], history[n - 1], next)];
  while (at != kNone && at >= n) at = older_[at];
  for (uint32_t i = 0; i < kPlaces && at != kNone; ++i, at = older_[at]) {
    if (history[at - 1] != next) continue;
    uint32_t match = 1;
    while (match < kLongest && match < at && match <= n &&
           history[at - 1 - match] == history[n - match]) {
      ++match;
    }
    if (match > best.match) best = {at, match};
  }
  return best;
}

uint32_t NgramDrafter::propose(std::span<const int32_t> history, int32_t next, uint32_t most,
                               int32_t* out, uint32_t* match) {
  index(history);
  *match = 0;
  if (history.size() < kGram) return 0;
  const Found found = longest(history, next);
  if (found.match < kGram) return 0;
  *match = found.match;
  // A text that repeats itself is copied on past its end: from + i reaches the draft itself.
  for (uint32_t i = 0; i < most; ++i) {
    const uint64_t p = uint64_t{found.from} + i, n = history.size();
    out[i] = p < n ? history[p] : p == n ? next : out[p - n - 1];
  }
  return most;
}

}  // namespace sharpi
