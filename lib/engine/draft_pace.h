// SPDX-License-Identifier: MIT
// How many drafts a step of speculative decoding takes: the number with the most expected tokens a
// second, from how often drafts of this kind were accepted at each place behind the first token,
// and from the measured time of passes by their number of rows. A drafter that loses time gets no
// drafts; it is tried again now and then, so rarely that the trials cost at most a hundredth of the
// time of steps without drafts.
// Thread rule: one owner (the session).
#pragma once

#include <array>
#include <cstdint>

#include "base/limits.h"

namespace sharpi {

/// The assumed cost of one more row in a pass, as a share of a step of one row, until passes with
/// drafts were timed.
inline constexpr double kRowShare = 0.03;

/// Counts of the drafts that stood at one distance behind the first token of a pass.
struct DraftPlace {
  uint64_t drafted = 0, accepted = 0;
};

/// Drafts of a step: how many, and whose.
struct Drafted {
  uint32_t n = 0;
  uint32_t by = 0;     // SHARPI_DRAFT_*
  uint32_t match = 0;  // as DraftPace counts
  uint32_t lag = 0;    // tokens that the drafter had not followed while it was off
  double behind = 0;   // seconds in which it read them
};

class DraftPace {
 public:
  /// The value of `match` for drafts of a model, which come from no place in the text.
  static constexpr uint32_t kOfModel = UINT32_MAX;
  /// How many drafts to take of a place that `match` tokens agree with; at most `most`. `lag`: the
  /// tokens that the drafter would have to read first.
  uint32_t choose(uint32_t match, uint32_t most, uint64_t lag = 0);
  /// Reports a step: its drafts (drafts.n = 0 for a step without any), the n_read tokens that it
  /// read, and the seconds that it took, drawing included but not those in which the drafter caught
  /// up.
  void took(const Drafted& drafts, uint32_t n_read, double seconds);
  /// From now on steps take so many times as long, whatever their drafts.
  void rescale(double factor);
  /// n drafts of such a place were verified, the first `accepted` of them were right.
  void verified(uint32_t match, uint32_t n, uint32_t accepted);

 private:
  /// How often drafts of a kind were accepted, given that all drafts before them in the pass were.
  /// Older counts fade.
  struct Rate {
    double right = 0, tried = 0;  // over all places
    std::array<double, kMaxDraft> right_at{}, tried_at{};
    Rate(double first_right, double first_tried) : right(first_right), tried(first_tried) {}
    void count(uint32_t n, uint32_t accepted);
    double value(uint32_t place) const;
  };
  Rate& rate(uint32_t match);
  double seconds(uint32_t n) const;
  uint32_t best(const Rate& accepted, uint32_t most) const;
  uint32_t choose_of_model(uint32_t most, double expected);
  uint32_t refuse(uint32_t trial, double expected);

  // Short, medium, long agreement; of a model, a guess that is soon forgotten.
  std::array<Rate, 4> rates_{{{6, 10}, {8, 10}, {9.5, 10}, {1.6, 2}}};
  std::array<double, kMaxDraft + 1> seconds_{};  // by drafts; 0 = not seen yet
  uint32_t n_plain_ = 0, most_timed_ = 0;  // steps without drafts; the most drafts of a timed pass
  uint32_t n_refused_ = 0, patience_ = 16;
  double balance_ = 0;     // seconds that drafts won, and what they are allowed to lose
  double lag_price_ = 0;   // of a token that was not followed, in seconds
  bool has_read_ = false;  // what was there before the first drafts
};

/// What a session's drafts cost in a pass over several sessions. It is priced as if every session
/// of the pass had as many rows and as slow a drafter: one that saw only what its own rows add
/// would take more drafts than is good for all. The time of a pass is modelled as a constant and a
/// part for each row, fitted to passes that were timed.
class SharedPass {
 public:
  void took(uint32_t n_rows, double seconds);
  /// Of a pass over n_rows rows of n_sessions that took so many seconds, own_rows of them this
  /// session's, behind own_seconds of its drafter.
  double price(uint32_t n_sessions, uint32_t n_rows, double seconds, uint32_t own_rows,
               double own_seconds) const;
  /// By what to multiply the times of steps that were measured in passes with fewer or more other
  /// sessions. Otherwise a step beside many sessions would look as if drafts had cost its time.
  double enter(uint32_t n_sessions);

 private:
  double n_ = 0, rows_ = 0, squares_ = 0, seconds_ = 0, products_ = 0;  // sums, older ones fade
  double row_ = kRowShare;  // what a row costs, as a share of a step of one
  uint32_t n_sessions_ = 1;
};

}  // namespace sharpi
