// SPDX-License-Identifier: MIT
#include "engine/draft_pace.h"

#include <algorithm>

namespace sharpi {
namespace {

constexpr double kFade = 0.9;  // what older verifications count beside a new one
/// The same of one place, which is tried less often. A place that is not tried any more is
/// forgotten likewise, and taken to be as the others are: so it is tried again.
constexpr double kPlaceFade = 0.97;
/// What all places together say weighs so many tries of a place.
constexpr double kSmoothing = 4;
constexpr double kTimeWeight = 0.2;  // of a new time
/// A new time counts at most so many times the mean: a pause of the machine in a step without
/// drafts would else make drafts look cheap, and while they are taken nobody times such a step
/// again.
constexpr double kMostSlower = 1.25;
constexpr uint32_t kTrial = 4, kMostPatience = 256;
/// Steps without drafts before those of a model are tried: one alone may have been slow.
constexpr uint32_t kPlainSteps = 4;
/// What drafts may lose: so many steps in the beginning, then this share of what steps without them
/// take. What they win is kept for harder times, up to so many steps.
constexpr double kFirstSteps = 4, kAllowance = 0.01, kMostSteps = 16;
/// Of passes over several sessions: what older ones count beside a new one.
constexpr double kPassFade = 0.95, kPriorRows = 1;

}  // namespace

DraftPace::Rate& DraftPace::rate(uint32_t match) {
  return rates_[match == kOfModel ? 3 : match < 6 ? 0 : match < 16 ? 1 : 2];
}

void DraftPace::Rate::count(uint32_t n, uint32_t accepted) {
  const uint32_t n_tried = std::min(n, accepted + 1);
  right = kFade * right + accepted;
  tried = kFade * tried + n_tried;
  for (uint32_t i = 0; i < kMaxDraft; ++i) {
    right_at[i] = kPlaceFade * right_at[i] + (i < accepted ? 1 : 0);
    tried_at[i] = kPlaceFade * tried_at[i] + (i < n_tried ? 1 : 0);
  }
}

/// Of drafts that so many others stand before, where all of those are right.
double DraftPace::Rate::value(uint32_t place) const {
  return (right_at[place] + kSmoothing * right / tried) / (tried_at[place] + kSmoothing);
}

void DraftPace::took(const Drafted& drafts, uint32_t n_read, double seconds) {
  const uint32_t n = drafts.n;
  double& mean = seconds_[n];
  if (mean == 0) mean = seconds;
  const double price = std::min(seconds, 2 * mean);  // a pause of the machine is none
  if (n == 0 && n_plain_ < kPlainSteps) {            // too few for a mean: the fastest of them
    mean = std::min(mean, seconds);
  } else {
    mean += kTimeWeight * (std::min(seconds, kMostSlower * mean) - mean);
  }
  most_timed_ = std::max(most_timed_, n);
  if (n != 0) {
    // Without drafts the tokens would have taken a step each. What a drafter reads before its first
    // drafts is as a prompt is: it would be the same for the best of drafters. A pass that was
    // quicker than a step of one row says that those were slow, not that drafts won something.
    balance_ +=
        n_read * seconds_[0] - std::max(price, seconds_[0]) - (has_read_ ? drafts.behind : 0);
    has_read_ = true;
    if (drafts.lag != 0) lag_price_ = drafts.behind / drafts.lag;
  } else {
    balance_ += n_plain_ == 0 ? kFirstSteps * seconds : kAllowance * price;
  }
  balance_ = std::min(balance_, kMostSteps * seconds_[0]);
  if (n == 0 && n_plain_ < kPlainSteps) ++n_plain_;
}

void DraftPace::rescale(double factor) {
  for (double& s : seconds_) s *= factor;
  balance_ *= factor;
}

void DraftPace::verified(uint32_t match, uint32_t n, uint32_t accepted) {
  rate(match).count(n, accepted);
}

/// Of n drafts; between those that were timed on a straight line, behind them as steep as before.
double DraftPace::seconds(uint32_t n) const {
  if (seconds_[n] != 0) return seconds_[n];
  const double one = seconds_[0] != 0 ? seconds_[0] : 1;
  uint32_t low = 0, high = n + 1;
  double at_low = one;
  for (uint32_t i = 1; i < n; ++i) {
    if (seconds_[i] != 0) low = i, at_low = seconds_[i];
  }
  while (high <= kMaxDraft && seconds_[high] == 0) ++high;
  if (high <= kMaxDraft) {
    return at_low + (seconds_[high] - at_low) * (n - low) / (high - low);
  }
  const double slope = low == 0 ? kRowShare * one : std::max(0.0, (at_low - one) / low);
  return at_low + slope * (n - low);
}

/// A pass of n drafts gives 1 + sum over i < n of the product of the first i + 1 places' rates.
uint32_t DraftPace::best(const Rate& accepted, uint32_t most) const {
  uint32_t best = 0;
  double tokens = 1, reach = 1, most_a_second = 1 / seconds(0);
  // More rows never take less time. While drafts are taken nobody times a step without: one that
  // was slow by chance would make drafts that are never right look like a gain for good.
  for (uint32_t n = 1; n <= most; ++n) {
    reach *= accepted.value(n - 1);
    tokens += reach;
    const double a_second = tokens / std::max(seconds(n), seconds(0));
    if (a_second > most_a_second) most_a_second = a_second, best = n;
  }
  return best;
}

/// No drafts, unless a trial of so many is due: the drafter has had none for long, the time that
/// earlier trials lost is made up, and the balance covers the time that the drafter needs to catch
/// up.
uint32_t DraftPace::refuse(uint32_t trial, double expected) {
  if (++n_refused_ < patience_ || balance_ < expected) return 0;
  n_refused_ = 0;
  patience_ = std::min(2 * patience_, kMostPatience);
  return trial;
}

/// Drafts of a model may cost as much as a step each, which nobody knows before they are timed: so
/// the first one is alone, and there are at most twice as many as were ever timed.
uint32_t DraftPace::choose_of_model(uint32_t most, double expected) {
  if (n_plain_ < kPlainSteps) return 0;
  most = std::min(most, std::max(1u, 2 * most_timed_));
  const uint32_t n = best(rate(kOfModel), most);
  if (n == 0 || balance_ < expected) return refuse(1, expected);
  patience_ = 16;
  return n;
}

uint32_t DraftPace::choose(uint32_t match, uint32_t most, uint64_t lag) {
  most = std::min(most, kMaxDraft);
  if (seconds_[0] == 0) return 0;  // nothing to compare with yet
  if (match == kOfModel) {
    // So few tokens are read with the next one, in the same pass.
    const bool follows = lag < kMaxDraft + 2;
    return choose_of_model(most, follows || !has_read_ ? 0 : lag_price_ * static_cast<double>(lag));
  }
  const uint32_t n = best(rate(match), most);
  if (n == 0 || balance_ < 0) return refuse(std::min(most, kTrial), 0);
  patience_ = 16;
  return n;
}

/// The slope of a straight line through the passes, in which what was known before weighs as much
/// as kPriorRows rows of spread: passes of one size say nothing about it.
void SharedPass::took(uint32_t n_rows, double seconds) {
  const double rows = n_rows;
  if (n_ > 0) seconds = std::min(seconds, 2 * seconds_ / n_);  // a pause of the machine is none
  n_ = kPassFade * n_ + 1;
  rows_ = kPassFade * rows_ + rows;
  squares_ = kPassFade * squares_ + rows * rows;
  seconds_ = kPassFade * seconds_ + seconds;
  products_ = kPassFade * products_ + rows * seconds;
  const double mean_rows = rows_ / n_, mean = seconds_ / n_;
  const double spread = squares_ / n_ - mean_rows * mean_rows;
  const double known = row_ * mean / (1 - row_ + row_ * mean_rows);
  const double slope =
      (products_ / n_ - mean_rows * mean + kPriorRows * known) / (spread + kPriorRows);
  const double row = std::clamp(slope, 0.0, mean / mean_rows);
  row_ = row / (mean - row * (mean_rows - 1));
}

double SharedPass::price(uint32_t n_sessions, uint32_t n_rows, double seconds, uint32_t own_rows,
                         double own_seconds) const {
  const double one = seconds / (1 - row_ + row_ * n_rows);  // a pass over one row
  return one * (1 - row_ + row_ * n_sessions * own_rows) + n_sessions * own_seconds;
}

double SharedPass::enter(uint32_t n_sessions) {
  const double before = 1 - row_ + row_ * n_sessions_;
  n_sessions_ = n_sessions;
  return (1 - row_ + row_ * n_sessions) / before;
}

}  // namespace sharpi
