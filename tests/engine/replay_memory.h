// SPDX-License-Identifier: MIT
// What the library knows and holds in a random sequence: tokens and rows of the sessions agree, and
// what is allocated is counted against their memory rows, and made to fail. Thread rule: one
// thread.
#pragma once

#include <vector>

#include "api/api_handles.h"
#include "replay_sequence.h"
#include "support/watched_new.h"

namespace sharpi::testing {

/// What calls of the library give; what they allocate is counted as the library's.
template <class Calls>
auto in_library(const Calls& calls) {
  const LibraryCall in;
  return calls();
}

/// Makes one allocation of a scope fail: of operator new, or of what the memory meter counts.
class Failure {
 public:
  /// None with percent 0. `most`: how many come into question.
  Failure(const Ready& ready, const Below& below, uint32_t percent, uint32_t most) : ready_(ready) {
    const uint32_t roll = below(100);
    if (roll >= 2 * percent) return;
    nth_ = 1 + below(most);
    of_meter_ = roll >= percent;
    if (of_meter_) nth_ = 1 + nth_ % 6;  // they are rarer
    first_ = ready.meter().n_requests();
    of_meter_ ? ready.meter().fail_request(nth_) : fail_new(static_cast<int>(nth_));
  }
  ~Failure() { end(); }
  Failure(const Failure&) = delete;
  Failure& operator=(const Failure&) = delete;
  /// Whether the allocation came, and failed.
  bool end() {
    if (nth_ == 0) return failed_;
    failed_ = of_meter_ ? ready_.meter().n_requests() - first_ >= nth_ : !new_pending();
    ready_.meter().fail_request(0);
    fail_new(0);
    ready_.n_failed_meter += failed_ && of_meter_ ? 1 : 0;
    ready_.n_failed_new += failed_ && !of_meter_ ? 1 : 0;
    nth_ = 0;
    return failed_;
  }

 private:
  const Ready& ready_;
  uint64_t first_ = 0;
  uint32_t nth_ = 0;
  bool of_meter_ = false, failed_ = false;
};

/// Every byte that is held for sessions is in a row of one, or small and was there when that was
/// made.
class SessionBytes {
 public:
  explicit SessionBytes(const Ready& ready)
      : ready_(ready), before_(ready.held()), has_blocks_(ready.begin_long) {}
  /// After a call: all sessions that there are.
  void check(const Chat& a, const Chat& b, const std::vector<Chat>& others) {
    rows_ = tables_ = shared_ = 0;
    expect_sound(a), expect_sound(b);
    for (const Chat& c : others) expect_sound(c);
    add(a), add(b);
    for (const Chat& c : others) add(c);
    // Who has shared a block of rows knows which pages those are.
    has_blocks_ = has_blocks_ || a.info().n_slots_max >= 64;
    const uint64_t n = 2 + others.size(), least = tables_ + n * ready_.beside;
    const Held now = ready_.held();
    const uint64_t by_new = now.by_new - before_.by_new, by_meter = now.by_meter - before_.by_meter,
                   by_allowance = now.by_allowance - before_.by_allowance;
    EXPECT_GE(by_new, least);
    EXPECT_LE(by_new, least + (has_blocks_ ? 1024 * n : 0));
    EXPECT_EQ(by_allowance, by_meter + tables_);
    EXPECT_LE(by_allowance, rows_);
    EXPECT_GE(by_allowance + shared_, rows_);  // pages that several rows share are counted once
  }

 private:
  /// Its tokens are those that the ledger counts, and every layer has a row for each.
  static void expect_sound(const Chat& c) {
    const Status agrees = c.get()->p->check();
    EXPECT_TRUE(agrees.is_ok()) << agrees.text();
  }
  void add(const Chat& c) {
    for (const sharpi_memory_row& r : rows_of_handle(sharpi_session_memory, c.get())) {
      rows_ += r.held_bytes;
      shared_ += r.shared_bytes;
      if (r.purpose == SHARPI_ROW_TABLES) tables_ += r.held_bytes;
    }
  }
  const Ready& ready_;
  const Held before_;
  uint64_t rows_ = 0, tables_ = 0, shared_ = 0;
  bool has_blocks_ = false;  // rows that forks share
};

}  // namespace sharpi::testing
