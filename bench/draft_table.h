// SPDX-License-Identifier: MIT
// Tokens a second by the number of drafts, from what passes take and from how often drafts are
// right. Acceptances by place are published in two meanings, and a list does not say which one it
// has: so the tables have both. Thread rule: pure functions, printing apart.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "drafter_time.h"

namespace sharpi::bench {

enum class Meaning {
  kGiven,  // that a draft is right where those before it are
  kOfAll,  // that it and those before it are
};

/// Tokens that a pass with n drafts gives on average. Behind the end of the list the last value
/// holds where it is given the ones before; of all drafts, none is right there: nobody has said how
/// many are, and this is the least.
inline double tokens_of_pass(const std::vector<double>& accept, Meaning meaning, uint32_t n) {
  double tokens = 1, reach = 1;
  for (uint32_t i = 0; i < n; ++i) {
    if (meaning == Meaning::kGiven) {
      reach *= accept[std::min<size_t>(i, accept.size() - 1)];
      tokens += reach;
    } else if (i < accept.size()) {
      tokens += accept[i];
    }
  }
  return tokens;
}

struct DraftTable {
  std::vector<double> accept;
  std::vector<uint32_t> sizes;  // drafts of a pass; the first is 0
  std::vector<double> seconds;  // of such a pass

  void print() const {
    std::printf("drafts that are right, by place:");
    for (const double a : accept) std::printf(" %.4g", a);
    std::printf(
        "\n  given: each given the ones before; the last value also holds at later places\n"
        "  of all: of all drafts at that place, as sharpi_session_draft_places counts; at later "
        "places none\n"
        "                                     ------- given --------  ------- of all -------\n"
        "drafts  ms a pass  of one row's  tokens     t/s  speed-up  tokens     t/s  speed-up  "
        "t/s if all are right\n");
    for (size_t i = 0; i < sizes.size(); ++i) {
      std::printf("%6u  %9.3f  %12.2f", sizes[i], 1e3 * seconds[i], seconds[i] / seconds[0]);
      for (const Meaning meaning : {Meaning::kGiven, Meaning::kOfAll}) {
        const double tokens = tokens_of_pass(accept, meaning, sizes[i]);
        std::printf("  %6.2f  %6.1f  %8.2f", tokens, tokens / seconds[i],
                    tokens / seconds[i] * seconds[0]);
      }
      std::printf("  %8.1f\n", (sizes[i] + 1) / seconds[i]);
    }
  }

  /// The same with a drafter that takes so long for each draft.
  void print_with(const std::string& drafter, const DraftTime& draft) const {
    std::printf("drafter %s: ", drafter.c_str());
    if (!draft.is_enough()) {
      std::printf(
          "only %u drafts were timed in %u sessions, too few for a figure (at least "
          "%u): it is switched off too soon\n",
          draft.n_drafts, draft.n_sessions, DraftTime::kFewest);
      return;
    }
    std::printf(
        "%.4f ms a draft, the median of %u steps with %u drafts (%.1f a step) in %u sessions\n",
        1e3 * draft.seconds, draft.n_steps, draft.n_drafts,
        static_cast<double>(draft.n_drafts) / draft.n_steps, draft.n_sessions);
    std::printf(
        "                                      ----- given -----  ---- of all -----\n"
        "drafts  ms a pass and its drafts          t/s  speed-up      t/s  speed-up\n");
    size_t best[2] = {};
    double most[2] = {};
    for (size_t i = 0; i < sizes.size(); ++i) {
      const double t = seconds[i] + sizes[i] * draft.seconds;
      std::printf("%6u  %24.3f     ", sizes[i], 1e3 * t);
      for (const Meaning meaning : {Meaning::kGiven, Meaning::kOfAll}) {
        const double a_second = tokens_of_pass(accept, meaning, sizes[i]) / t;
        const size_t m = meaning == Meaning::kGiven ? 0 : 1;
        if (a_second > most[m]) most[m] = a_second, best[m] = i;
        std::printf("  %7.1f  %8.2f", a_second, a_second * seconds[0]);
      }
      std::printf("\n");
    }
    std::printf("best: given, %u drafts with %.1f t/s; of all, %u drafts with %.1f t/s\n",
                sizes[best[0]], most[0], sizes[best[1]], most[1]);
  }
};

}  // namespace sharpi::bench
