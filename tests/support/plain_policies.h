// SPDX-License-Identifier: MIT
// Scores and policies of compaction a second time, plainly and in double precision, over what a
// saved session holds: the reference for models that tools/compaction_oracle.py does not know.
// Thread rule: pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

#include "sharpi.h"
#include "support/session_rows.h"

namespace sharpi::testing {

struct PlainRequest {
  sharpi_policy policy = SHARPI_POLICY_RETRIEVAL;
  uint32_t budget = 256, recency = 64, sinks = 0, pool_kernel = 13, span = 12;
  uint32_t replay_span = 4;
};

/// One layer's keep sets as slots, with the scores they come from.
struct PlainLayer {
  uint32_t layer = 0;
  std::vector<std::vector<double>> scores;   // [n_kv_heads][n_rows]
  std::vector<std::vector<uint32_t>> slots;  // [n_kv_heads][budget], ascending
};

/// What the policies choose by, of one layer: the attention that all captured queries pay to each
/// row (their mean, the most, the most where older queries count less), and the size of its value.
/// All are [n_kv_heads][n_rows].
struct PlainScores {
  uint32_t layer = 0;
  std::vector<std::vector<double>> mean, top, faded, sizes;
};
/// Every full-attention layer that owns rows. It takes long, and serves any number of requests.
std::vector<PlainScores> plain_scores(const ModelSpec& spec, const SessionRows& rows);

/// Replay scores of the last n rows of a layer, read in one pass, [n_kv_heads][n], as
/// sharpi_session_params.replay says. Pre: the queries of these rows were captured.
std::vector<std::vector<double>> plain_replay_scores(const ModelSpec& spec, const SessionRows& rows,
                                                     uint32_t layer, uint32_t n, uint32_t every);

/// The keep sets of one request, by the scores of the same rows.
std::vector<PlainLayer> plain_keep_sets(const ModelSpec& spec, const SessionRows& rows,
                                        const std::vector<PlainScores>& scores,
                                        const PlainRequest& request);

/// Rows in only one of two keep sets whose score is not within `tolerance` (relative) of the lowest
/// kept one: none, if both sets follow the same scores up to ties.
inline std::vector<uint32_t> beyond_ties(const std::vector<double>& scores,
                                         const std::vector<uint32_t>& want,
                                         const std::vector<uint32_t>& got, const PlainRequest& r,
                                         double tolerance) {
  const std::set<uint32_t> a(want.begin(), want.end()), b(got.begin(), got.end());
  double last = 1e300;
  for (const uint32_t t : want) {
    if (t >= r.sinks && t + r.recency < scores.size()) last = std::min(last, scores[t]);
  }
  std::vector<uint32_t> out;
  for (uint32_t t = 0; t < scores.size(); ++t) {
    if (a.count(t) == b.count(t)) continue;
    if (std::abs(scores[t] - last) > tolerance * last) out.push_back(t);
  }
  return out;
}

}  // namespace sharpi::testing
